"""A tensor as its values that are not zero and one bit for every entry: compressed-tensors' bitmask layout.

NAME.shape        int64 (dimensions)        NAME.bitmask      uint8 (rows, ⌈columns / 8⌉), the first in the lowest bit
NAME.compressed   the values, row by row    NAME.row_offsets  int64 (rows), how many values stand before each row

Rows run over the first dimension, columns over all others (for matrices this is compressed-tensors' own layout; a
kernel of 3×3 would otherwise take a byte for three entries). What is no zero is decided by bits: −0.0 is stored.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from .errors import InputError

PARTS = ("shape", "compressed", "bitmask", "row_offsets")
WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes → type that shows the bits
VALUES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8)


def compress(tensor: Tensor) -> dict[str, Tensor]:
    """The four parts, under the names of `PARTS`, of a tensor with entries and at least one dimension."""
    rows = tensor.detach().cpu().contiguous().reshape(len(tensor), -1)
    kept = _has_bits(rows)  # (rows, columns)
    counts = kept.sum(1)
    return {
        "shape": torch.tensor(tensor.shape),
        "compressed": rows[kept],
        "bitmask": torch.from_numpy(np.packbits(kept.numpy(), axis=1, bitorder="little")),
        "row_offsets": counts.cumsum(0) - counts,
    }


def compressed_bytes(tensor: Tensor) -> int:
    """What the four parts take."""
    rows, size = len(tensor), tensor.element_size()
    kept = int(_has_bits(tensor.detach().cpu().contiguous()).sum())
    return 8 * tensor.dim() + size * kept + rows * -(-tensor.numel() // rows // 8) + 8 * rows


def decompress(parts: Mapping[str, Tensor]) -> Tensor:
    """The tensor that `compress` took apart, to the last bit; every number is checked before it is used.

    Raises:
        InputError: when the parts do not fit one another.
    """
    shape = _shape(parts["shape"])
    rows, columns = shape[0], math.prod(shape[1:])
    mask = _mask(parts["bitmask"], rows, columns)
    counts = mask.sum(1)
    offsets = parts["row_offsets"]
    _require(offsets.dtype == torch.int64 and offsets.shape == (rows,), f"row_offsets is not int64 of {rows} rows")
    _require(torch.equal(offsets, counts.cumsum(0) - counts), "row_offsets are not those of the bitmask")
    values, kept = parts["compressed"], int(counts.sum())
    _require(values.dtype in VALUES, f"compressed is {values.dtype}")
    _require(values.shape == (kept,), f"compressed is {_sizes(values)}, the bitmask has {kept} bits set")
    tensor = torch.zeros(rows, columns, dtype=values.dtype)
    tensor[mask] = values
    return tensor.reshape(shape)


def _has_bits(tensor: Tensor) -> Tensor:
    return tensor.view(WHOLE[tensor.element_size()]) != 0


def _shape(given: Tensor) -> list[int]:
    _require(
        given.dtype == torch.int64 and given.dim() == 1 and 1 <= len(given) <= 8, "shape is no row of 1 to 8 int64"
    )
    shape: list[int] = given.tolist()
    _require(min(shape) >= 1, f"shape is {shape}, with a size below 1")
    return shape


def _mask(bitmask: Tensor, rows: int, columns: int) -> Tensor:
    """(rows, columns) of bool; the file is at least an eighth as long, so it bounds what is made here."""
    width = -(-columns // 8)
    fits = bitmask.dtype == torch.uint8 and bitmask.shape == (rows, width)
    _require(fits, f"bitmask is {bitmask.dtype} {_sizes(bitmask)}, not torch.uint8 {[rows, width]}")
    bits = np.unpackbits(bitmask.numpy(), axis=1, bitorder="little")
    _require(not bits[:, columns:].any(), "bitmask has bits set after the last column")
    return torch.from_numpy(bits[:, :columns].astype(bool))


def _sizes(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _require(right: bool, problem: str) -> None:
    if not right:
        raise InputError(f"{problem}.")
