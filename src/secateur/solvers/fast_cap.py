"""Fast CAP: CAP's update with one Fisher for all blocks of a layer, as SparseGPT has one for all rows (Frantar 2023).

With F̄ (B, B) the mean of the layer's blocks, each a part of a row, A = F̄ + λI, and K what a block keeps:

  score            w_q² / (2 [A⁻¹]_qq), from one inverse a layer
  weights          w_K = A_KK⁻¹ A_K: w, as CAP's
  with `forward`   the columns in their order: those that leave pass their error on to the columns not yet visited

Where weights have left before, the inverse is that of the block's own A_KK.
Cost: size³ operations a layer to score; kept³/3 a block to compensate, with `forward` size²/2. Memory: size²/2 a layer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..distributed import Processes
from ..fisher import to_blocks
from ..triangles import diagonal, pack, packed_numbers, unpack
from .base import Solver
from .obs import compensate, factor_kept, half_form, inverse_diagonal, report
from .statistic import Statistic

CHUNK = 1 << 22  # numbers of the copies of F̄ that are made at a time

# --- what is gathered -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedFisher(Statistic):
    """The mean of a layer's diagonal blocks: (1, size · (size + 1) / 2), packed (see triangles.py)."""

    predicts: ClassVar[int] = 1

    block: int  # B at the most

    def size(self, shape: tuple[int, int]) -> int:
        """The longest equal parts of a row, so that an input stands at one place in all blocks, if not too short."""
        longest = min(self.block, shape[1])
        part = max(size for size in range(1, longest + 1) if shape[1] % size == 0)
        return part if 4 * part >= longest else min(self.block, math.prod(shape))

    def bytes_needed(self, shape: tuple[int, int], dtype: torch.dtype, gradients: int | None) -> int:
        return self.size(shape) ** 2 * dtype.itemsize

    def start(self, shape, dtype, gradients, device="cpu") -> "Shared":
        return Shared(math.prod(shape), torch.zeros(self.size(shape), self.size(shape), dtype=dtype, device=device))

    def loss_increase(self, change: Tensor, values: Tensor) -> Tensor:
        return half_form(change, unpack(values).expand(len(change), -1, -1))


class Shared:
    """Sums over gradients and blocks with `add`; `values` are their mean after `finish`."""

    def __init__(self, weights: int, square: Tensor):
        self.blocks = weights / len(square)  # of which the last may be a part
        self.square = square
        self.values = torch.empty(0)

    def add(self, gradients: Tensor) -> None:
        rows = to_blocks(gradients.flatten(1).to(self.square.dtype), len(self.square)).flatten(0, 1)
        self.square.addmm_(rows.T, rows)

    def join(self, processes: Processes) -> None:
        processes.sum_(self.square)

    def finish(self, gradients: int) -> None:
        self.values = pack(self.square[None] / (gradients * self.blocks))
        del self.square

    @property
    def trace(self) -> float:
        return self.blocks * float(diagonal(self.values).sum(dtype=torch.float64))


# --- the method -------------------------------------------------------------------------------------------------------


def scores(weight: Tensor, fisher: Tensor, keep: Tensor | None = None, damping: float = 0.0) -> Tensor:
    """The loss increase of each weight's leaving alone; −inf for weights that have left before.

    Args:
        weight, keep: (blocks, size).
        fisher: (1, size · (size + 1) / 2), the packed Fisher of all blocks.
        damping: λ.
    """
    keep = torch.ones_like(weight, dtype=torch.bool) if keep is None else keep
    diagonals = inverse_diagonal(torch.ones_like(keep[:1]), fisher, damping).expand_as(weight)
    if len(partly := (~keep).any(1).nonzero()[:, 0]):
        own = _each(lambda kept, f: inverse_diagonal(kept, f, damping), fisher, keep[partly])
        diagonals = diagonals.index_copy(0, partly, own)
    return torch.where(keep, weight**2 / (2 * diagonals), -torch.inf)


def feed_forward(weight: Tensor, keep: Tensor, fisher: Tensor, damping: float = 0.0) -> Tensor:
    """Column after column, what leaves is made up for by the columns after it; zero where dropped."""
    factor, used = factor_kept(torch.ones_like(keep[:1]), unpack(fisher), damping)
    report(used, damping)
    # row j, over its diagonal entry: what a change of column j asks of those after it
    upper = torch.linalg.cholesky(torch.cholesky_inverse(factor[0]), upper=True)
    current = weight.to(torch.float64, copy=True)
    for j, row in enumerate(upper):
        error = torch.where(keep[:, j], 0.0, current[:, j]) / row[j]
        current[:, j:] = current[:, j:] - error[:, None] * row[j:]
    return torch.where(keep, current.to(weight.dtype), 0.0)


def _each(function: Callable[..., Tensor], fisher: Tensor, *tensors: Tensor) -> Tensor:
    """`function` of a few blocks at a time, each with the Fisher they share."""
    step = max(1, CHUNK // packed_numbers(tensors[0].shape[1]))
    parts = zip(*(tensor.split(step) for tensor in tensors), strict=True)
    return torch.cat([function(*part, fisher.expand(len(part[0]), -1)) for part in parts])


@dataclass(frozen=True)
class FastCAP(Solver):
    """CAP's joint update from one Fisher a layer; scores of weights that leave alone.

    >>> FastCAP(block=96)
    FastCAP(block=96, damping=0.1, relative=True, forward=False)
    """

    name: ClassVar[str] = "fast_cap"
    paper: ClassVar[str] = "Kuznedelev et al. 2023, CAP; with the shared matrix of Frantar and Alistarh 2023, SparseGPT"
    cost: ClassVar[str] = "B³ a layer"
    memory: ClassVar[str] = "B² / 2 numbers a layer"

    block: int = 192  # B
    damping: float = 0.1  # λ, in units of the Fisher's mean diagonal
    forward: bool = False  # errors are fed forward, in place of the joint update

    @property
    def statistic(self) -> SharedFisher:
        return SharedFisher(self.block)

    def scores(self, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return scores(weight, gathered, keep, damping)

    def compensate(self, weight: Tensor, before: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        if self.forward:
            return feed_forward(weight, keep, gathered, damping)
        return _each(lambda w, k, f: compensate(w, k, f, damping), gathered, weight, keep)
