"""The empirical Fisher of each weight, F = 1/N Σ g gᵀ, in diagonal blocks of B consecutive entries.

The blocks run over the weight's matrix (out, in) row by row; the last one is filled up with zeros, never regrouped.
Cost: 2·B operations and no extra memory per weight and gradient; B numbers of storage per weight.
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


def to_blocks(values: Tensor, block: int) -> Tensor:
    """(…, weights) as (…, blocks, size), filled up with zeros; a block longer than the weight is cut to it."""
    count = values.shape[-1]
    size = min(block, count)
    padded = nn.functional.pad(values, (0, -count % size)) if count % size else values
    return padded.unflatten(-1, (-1, size))


def from_blocks(blocks: Tensor, count: int) -> Tensor:
    """The first `count` entries of (blocks, size): what `to_blocks` was given."""
    return blocks.reshape(-1)[:count]


class BlockFisher:
    """The Fisher of one weight: `add` gradients, then read `blocks` (blocks, size, size)."""

    def __init__(self, weights: int, block: int, device: torch.device | str = "cpu", dtype=torch.float32):
        self.weights = weights
        self.size = min(block, weights)
        self.gradients = 0  # N so far
        count = -(-weights // self.size)
        self._sum = torch.zeros(count, self.size, self.size, device=device, dtype=dtype)
        self._lower_only = False

    def add(self, gradients: Tensor) -> None:
        """`gradients` (gradients, weights), in any shape after the first axis."""
        gradients = gradients.reshape(len(gradients), -1)
        self.gradients += len(gradients)
        if self.size == 1:
            self._sum.view(-1).add_(gradients.square().sum(0))
            return
        padded = to_blocks(gradients, self.size)  # (gradients, blocks, size)
        if self._sum.dtype == torch.float32 and native.usable(padded, self._sum):
            native.accumulate(self._sum, padded.flatten(1))
            self._lower_only = True
        else:
            self._sum.baddbmm_(padded.permute(1, 2, 0), padded.transpose(0, 1))

    @property
    def blocks(self) -> Tensor:
        """(blocks, size, size), symmetric, averaged over the gradients."""
        if self._lower_only:
            for part in self._sum.split(256):  # both triangles, a few blocks at a time
                part.copy_(part.tril() + part.tril(-1).mT)
            self._lower_only = False
        if self.gradients > 1:
            self._sum /= self.gradients
            self.gradients = 1
        return self._sum

    @property
    def trace(self) -> float:
        return float(self.blocks.diagonal(dim1=1, dim2=2).sum(dtype=torch.float64))


@dataclass(frozen=True)
class Curvature:
    """The Fisher of every weight, and how many gradients made it."""

    fishers: dict[str, BlockFisher]
    gradients: int

    def __getitem__(self, name: str) -> Tensor:
        return self.fishers[name].blocks

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
    for of_size in fishers.values():  # a weight that met no gradient in some batch still has N of them
        for fisher in of_size.values():
            fisher.gradients = count
    return {size: Curvature(of_size, count) for size, of_size in fishers.items()}


def bytes_needed(weights: Mapping[str, PrunableWeight], block: int) -> int:
    """What the Fisher of these weights takes in float32."""
    sizes = ((w.size, min(block, w.size)) for w in weights.values())
    return sum(-(-count // size) * size * size * 4 for count, size in sizes)


def _check_memory(weights: Mapping[str, PrunableWeight], blocks: list[int]) -> None:
    if any(w.parameter.device.type != "cpu" for w in weights.values()):
        return  # the device's allocator says when it is full
    needed, free = sum(bytes_needed(weights, block) for block in blocks), available_bytes()
    if needed > 0.9 * free:
        fits = int(max(blocks) * 0.6 * free / needed)
        raise InputError(
            f"The Fisher of {len(weights)} layers in blocks of {', '.join(map(str, blocks))} takes {readable(needed)},"
            f" and {readable(free)} of memory are free; try a block of {max(fits, 1)}, or fewer layers."
        )
