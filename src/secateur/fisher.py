"""The empirical Fisher of one weight, F = 1/N Σ g gᵀ, in diagonal blocks of B consecutive entries.

The blocks run over the weight's matrix (out, in) row by row; the last one is filled up with zeros, never regrouped.
Only lower triangles are kept, packed. Cost: B operations a weight and gradient; (B + 1) / 2 numbers a weight.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import native
from .batches import Loss
from .errors import InputError
from .gradients import stream_gradients
from .layers import PrunableWeight
from .memory import available_bytes, readable
from .progress import Track, silent
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

    def finish(self, gradients: int) -> None:
        """Divide the sum by the number of gradients; those that never reached this weight were zero."""
        self.packed /= gradients

    @property
    def trace(self) -> float:
        return float(diagonal(self.packed).sum(dtype=torch.float64))


@dataclass(frozen=True)
class Curvature:
    """The Fisher of every weight, and how many gradients made it."""

    fishers: dict[str, BlockFisher]
    gradients: int

    def __getitem__(self, name: str) -> Tensor:
        """(blocks, size · (size + 1) / 2), packed."""
        return self.fishers[name].packed

    @property
    def mean_diagonal(self) -> float:
        """Over all weights: the scale that relative damping refers to."""
        return sum(f.trace for f in self.fishers.values()) / sum(f.weights for f in self.fishers.values())


def collect(
    model: nn.Module,
    batches: Iterable,
    weights: Mapping[str, PrunableWeight],
    blocks: Iterable[int],
    *,
    loss: Loss | None = None,
    samples_per_gradient: int = 1,
    track: Track = silent,
) -> dict[int, Curvature]:
    """One pass over the batches, and the Fisher for every block size in `blocks`.

    Raises:
        InputError: when the Fishers would not fit in memory.
    """
    sizes = sorted(set(blocks))
    _check_memory(weights, sizes)
    fishers = {
        size: {n: BlockFisher(w.size, size, w.parameter.device, w.precision) for n, w in weights.items()}
        for size in sizes
    }

    def sink(name: str, gradients: Tensor) -> None:
        for of_size in fishers.values():
            of_size[name].add(gradients)

    count = stream_gradients(
        model, batches, weights, sink, loss=loss, samples_per_gradient=samples_per_gradient, track=track
    )
    for of_size in fishers.values():
        for fisher in of_size.values():
            fisher.finish(count)
    return {size: Curvature(of_size, count) for size, of_size in fishers.items()}


def _check_memory(weights: Mapping[str, PrunableWeight], blocks: list[int]) -> None:
    if any(w.parameter.device.type != "cpu" for w in weights.values()):
        return  # the device's allocator says when it is full
    needed, free = sum(bytes_needed(w.size, block) for w in weights.values() for block in blocks), available_bytes()
    if needed > 0.9 * free:
        fits = int(max(blocks) * 0.6 * free / needed)
        raise InputError(
            f"The Fisher of {len(weights)} layers in blocks of {', '.join(map(str, blocks))} takes {readable(needed)},"
            f" and {readable(free)} of memory are free; try a block of {max(fits, 1)}, or fewer layers."
        )
