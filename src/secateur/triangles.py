"""Packed lower triangles of symmetric blocks: the rows of 1, 2, … size numbers one after the other, half the memory."""

import math

import torch
from torch import Tensor


def packed_numbers(size: int) -> int:
    """How many numbers the triangle of a (size, size) block has."""
    return size * (size + 1) // 2


def side(numbers: int) -> int:
    """The size of a block whose triangle has so many numbers."""
    size = (math.isqrt(8 * numbers + 1) - 1) // 2
    if packed_numbers(size) != numbers:
        raise ValueError(f"{numbers} numbers are no packed triangle; a block of {size} has {packed_numbers(size)}.")
    return size


def pack(square: Tensor) -> Tensor:
    """(blocks, size, size) → (blocks, packed), from the lower triangles."""
    rows, columns = torch.tril_indices(square.shape[1], square.shape[1], device=square.device)
    return square[:, rows, columns]


def unpack(packed: Tensor) -> Tensor:
    """(blocks, packed) → (blocks, size, size), symmetric."""
    size = side(packed.shape[1])
    square = packed.new_empty(len(packed), size, size)
    rows, columns = torch.tril_indices(size, size, device=packed.device)
    square[:, rows, columns] = packed
    square[:, columns, rows] = packed
    return square


def diagonal(packed: Tensor) -> Tensor:
    """(blocks, size): the diagonals of packed triangles."""
    ends = torch.arange(1, side(packed.shape[1]) + 1, device=packed.device)
    return packed[:, ends * (ends + 1) // 2 - 1]
