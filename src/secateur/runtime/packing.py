"""Packed matrices: a weight without its zeros, in the order in which the kernels read it (csrc/sparse.h)."""

from typing import Any

import torch
from torch import Tensor

from .. import native

PANEL = 64  # tokens
_WIDTH = 128  # columns of a block: with 64 tokens, 32 KiB that stay in an L1 cache beside the weights passing through


def pack(weight: Tensor, bias: Tensor | None) -> Any:
    """The packed matrix of a weight (rows, columns) and a bias (rows,)."""
    core = native.core()
    given = None if bias is None else _float32(bias)
    return core.PackedMatrix.pack(_float32(weight), given, _WIDTH, True)


def _float32(values: Tensor) -> Any:
    return values.detach().to("cpu", torch.float32).contiguous().numpy()


def unpack(packed: Any) -> Tensor:
    """The weight (rows, columns) of a packed matrix, read as plainly as its definition: the kernels' truth."""
    values, offsets = iter(packed.values.reshape(-1, 4).tolist()), iter(packed.offsets.reshape(-1, 4).tolist())
    weight = torch.zeros(packed.rows + 1, packed.columns)  # one more row: the last tile's own, where rows are odd
    tiles_of_block = (packed.rows + 1) // 2
    for number, (first, second, shared, singles) in enumerate(packed.tiles.reshape(-1, 4).tolist()):
        start = number // tiles_of_block * packed.width
        for _ in range(shared):
            columns = [start + offset // PANEL for offset in next(offsets)]
            weight[first, columns] += torch.tensor(next(values))
            weight[second, columns] += torch.tensor(next(values))
        for left in range(singles, 0, -4):
            columns = [[start + offset // PANEL for offset in next(offsets)][:left] for _ in range(2)]
            for row, at in zip((first, second), columns, strict=True):
                for column, value in zip(at, next(values), strict=False):  # a shorter row is filled up with zeros
                    weight[row, column] += value
    return weight[: packed.rows]
