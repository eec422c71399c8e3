"""Packed lower triangles are the rows of the matrix, one after the other."""

import pytest
import torch

from secateur.triangles import diagonal, pack, packed_numbers, side, unpack

SIZES = [1, 2, 3, 17, 192]


@pytest.mark.parametrize("size", SIZES)
def test_rows_follow_one_another(size):
    square = torch.randn(2, size, size)
    rows = [square[1, i, : i + 1] for i in range(size)]
    assert pack(square)[1].equal(torch.cat(rows))


@pytest.mark.parametrize("size", SIZES)
def test_unpacking_gives_the_symmetric_matrix_back(size):
    square = torch.randn(2, size, size)
    symmetric = square + square.mT
    assert unpack(pack(symmetric)).equal(symmetric)
    assert diagonal(pack(symmetric)).equal(symmetric.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("size", [*SIZES, 2**20])
def test_the_side_follows_from_the_count_of_numbers(size):
    assert side(packed_numbers(size)) == size


def test_a_count_that_is_no_triangle_is_refused():
    with pytest.raises(ValueError, match="7 numbers are no packed triangle; a block of 3 has 6"):
        side(7)
