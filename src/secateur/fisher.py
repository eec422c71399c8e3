"""The empirical Fisher of one weight, F = 1/N Σ g gᵀ, in diagonal blocks of B consecutive entries.

The blocks run over the weight's matrix (out, in) row by row; the last one is filled up with zeros, never regrouped.
Only lower triangles are kept, packed. Cost: B operations a weight and gradient; (B + 1) / 2 numbers a weight.
"""

import torch
from torch import Tensor, nn

from . import native
from .distributed import Processes
from .triangles import diagonal, pack, packed_numbers

CHUNK = 1 << 24  # numbers of the square blocks that the twin makes at a time


def to_blocks(values: Tensor, block: int) -> Tensor:
    """(…, weights) as (…, blocks, size), filled up with zeros; a block longer than the weight is cut to it."""
    count = values.shape[-1]
    size = min(block, count)
    padded = nn.functional.pad(values, (0, -count % size)) if count % size else values
    return padded.unflatten(-1, (-1, size))


def from_blocks(blocks: Tensor, count: int) -> Tensor:
    """The first `count` entries of (blocks, size): what `to_blocks` was given."""
    return blocks.reshape(-1)[:count]


def bytes_needed(weights: int, block: int, dtype: torch.dtype = torch.float32) -> int:
    """What the Fisher of so many weights takes."""
    size = min(block, weights)
    return -(-weights // size) * packed_numbers(size) * dtype.itemsize


class BlockFisher:
    """Sums gradients with `add`; `packed` (blocks, size · (size + 1) / 2) is their Fisher after `finish`."""

    def __init__(self, weights: int, block: int, device: torch.device | str = "cpu", dtype=torch.float32):
        self.weights, self.size = weights, min(block, weights)
        blocks = -(-weights // self.size)
        self.packed = torch.zeros(blocks, packed_numbers(self.size), device=device, dtype=dtype)

    def add(self, gradients: Tensor) -> None:
        """`gradients` (gradients, weights), in any shape after the first axis."""
        gradients = gradients.reshape(len(gradients), -1)
        if self.size == 1:
            self.packed.view(-1).add_(gradients.to(self.packed.dtype).square().sum(0))
        elif native.can_accumulate(self.packed, gradients):
            native.accumulate(self.packed, gradients)
        else:
            self._add(gradients.to(self.packed.dtype))

    def _add(self, gradients: Tensor) -> None:
        """The twin of the native kernel: the whole squares of a few blocks at a time."""
        blocks = to_blocks(gradients, self.size).transpose(0, 1)  # (blocks, gradients, size)
        step = max(1, CHUNK // self.size**2)
        for part, sums in zip(blocks.split(step), self.packed.split(step), strict=True):
            sums += pack(part.mT @ part)

    def join(self, processes: Processes) -> None:
        """Add the sums of other processes."""
        processes.sum_(self.packed)

    def finish(self, gradients: int) -> None:
        """Divide the sum by the number of gradients; those that never reached this weight were zero."""
        self.packed /= gradients

    @property
    def values(self) -> Tensor:
        return self.packed

    @property
    def trace(self) -> float:
        return float(diagonal(self.packed).sum(dtype=torch.float64))
