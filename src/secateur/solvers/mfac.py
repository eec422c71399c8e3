"""M-FAC (Frantar, Kurtic and Alistarh 2021): WoodFisher's scores and update, with no Fisher ever formed.

With the stored gradients of a block as the rows of G (N, B), scaled so that F = GᵀG, Woodbury's identity gives

  A⁻¹ = (λI + GᵀG)⁻¹ = (I − VᵀV) / λ,    V = L⁻¹G,    LLᵀ = λI + GGᵀ  (N, N)

and with it every product A⁻¹x and the diagonal. Where B ≤ N the system is the (B, B) one itself. Memory does not depend
on B, so blocks are long. Weights that have left before take their columns out of G.
Cost: about 2 · min(N, B) · N operations a weight, to score and again to compensate; N numbers a weight.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..distributed import Processes
from ..errors import InputError
from ..fisher import to_blocks
from .base import Solver
from .obs import CHUNK, factor_kept, report
from .statistic import Statistic

LOST = 1e-13  # λ in units of a block's largest diagonal entry, below which it drowns in rounding: then
LEAST = 1e-8  # of the mean diagonal is taken instead, for a Fisher of fewer gradients than weights is singular

# --- what is gathered -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredGradients(Statistic):
    """The first so many gradients themselves: (blocks, gradients, size), scaled so that F = GᵀG in each block."""

    predicts: ClassVar[int] = 2
    smaller: ClassVar[str] = "fewer stored gradients"

    block: int | None  # B; None for all of a layer
    most: int  # N, or all where fewer come

    def size(self, shape: tuple[int, int]) -> int:
        return min(self.block or math.prod(shape), math.prod(shape))

    def bytes_needed(self, shape: tuple[int, int], dtype: torch.dtype, gradients: int | None) -> int:
        return math.prod(self._room(shape, gradients)) * dtype.itemsize

    def start(self, shape, dtype, gradients, device="cpu") -> "Store":
        return Store(torch.zeros(self._room(shape, gradients), dtype=dtype, device=device), self.most)

    def used(self, gradients: int) -> int:
        return min(gradients, self.most)

    def loss_increase(self, change: Tensor, values: Tensor) -> Tensor:
        return 0.5 * (values @ change[..., None]).square().sum((1, 2))

    def _room(self, shape: tuple[int, int], gradients: int | None) -> tuple[int, int, int]:
        size = self.size(shape)
        return -(-math.prod(shape) // size), self.most if gradients is None else self.used(gradients), size


class Store:
    """Takes gradients with `add` for as long as there is room; `values` are scaled by `finish`."""

    def __init__(self, room: Tensor, most: int):
        self.values, self.filled, self.most = room, 0, most

    def add(self, gradients: Tensor) -> None:
        taken = gradients[: self.values.shape[1] - self.filled].flatten(1).to(self.values.dtype)
        blocks = to_blocks(taken, self.values.shape[2]).transpose(0, 1)
        self.values[:, self.filled : self.filled + len(taken)] = blocks
        self.filled += len(taken)

    def join(self, processes: Processes) -> None:
        """The gradients of other processes after these, for as long as there is room."""
        if processes.count > 1:
            rows = processes.joined(self.values[:, : self.filled].transpose(0, 1))[: self.most]
            rows = rows if len(rows) else self.values[:, :1].transpose(0, 1)
            self.values, self.filled = rows.transpose(0, 1).contiguous(), len(rows)

    def finish(self, gradients: int) -> None:
        count = min(gradients, self.most)
        self.values = self.values[:, : max(self.filled, 1)].mul_(count**-0.5)

    @property
    def trace(self) -> float:
        return sum(float(block.double().square().sum()) for block in self.values)


# --- the method -------------------------------------------------------------------------------------------------------


def scores(weight: Tensor, gradients: Tensor, keep: Tensor | None = None, damping: float = 0.0) -> Tensor:
    """w_q² / (2 [A⁻¹]_qq), the loss increase of each weight's leaving alone; −inf for those that have left before.

    Args:
        weight: (blocks, size).
        gradients: (blocks, N, size), scaled so that F = GᵀG.
        keep: (blocks, size), False for weights that have left before.
        damping: λ.
    """
    keep = torch.ones_like(weight, dtype=torch.bool) if keep is None else keep
    diagonals = [inverse(gradients[part], keep[part], damping)[0] for part in _parts(gradients)]
    return torch.where(keep, weight**2 / (2 * torch.cat(diagonals).to(weight.dtype)), -torch.inf)


def compensate(weight: Tensor, before: Tensor, keep: Tensor, gradients: Tensor, damping: float = 0.0) -> Tensor:
    """The updates of all that leave between the masks `before` and `keep`, added up; zero where dropped."""
    changes = []
    for part in _parts(gradients):
        diagonal, times = inverse(gradients[part], before[part], damping)
        leaving = before[part] & ~keep[part]
        changes.append(times(torch.where(leaving, weight[part] / diagonal, 0.0)).to(weight.dtype))
    return torch.where(keep, weight - torch.cat(changes), 0.0)


def inverse(gradients: Tensor, keep: Tensor, damping: float) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The diagonal of (F_KK + λI)⁻¹, and the product with it, in float64; zero where dropped."""
    kept = gradients.to(torch.float64, copy=True)  # (blocks, N, size)
    if not keep.all():
        kept *= keep[:, None]
    if kept.shape[1] >= kept.shape[2]:
        factor, used = factor_kept(keep, kept.mT @ kept, damping)
        report(used, damping)
        diagonal = torch.cholesky_inverse(factor).diagonal(dim1=1, dim2=2) * keep
        return diagonal, lambda x: torch.cholesky_solve((x * keep)[..., None], factor)[..., 0] * keep

    squares = kept.square().sum(1)  # F_qq
    least = LEAST * squares.sum(1) / keep.sum(1).clamp(min=1)
    base = torch.where(damping > LOST * squares.amax(1), damping, least.clamp(min=1e-20))  # (blocks,)
    gram = kept @ kept.mT + torch.diag_embed(base[:, None].expand(kept.shape[:2]))
    factor, more = factor_kept(torch.ones_like(kept[:, :, 0], dtype=torch.bool), gram, 0.0)
    report(base + more, damping)
    used = (base + more)[:, None]  # λ
    half = torch.linalg.solve_triangular(factor, kept, upper=False)  # V
    # never below 1 / A_qq, as no diagonal of an inverse is: rounding may take it there
    diagonal = ((1 - half.square().sum(1)) / used).maximum(1 / (squares + used)) * keep

    def times(x: Tensor) -> Tensor:
        x = (x * keep)[..., None]
        return (x - half.mT @ (half @ x))[..., 0] / used

    return diagonal, times


def _parts(gradients: Tensor) -> Iterator[slice]:
    """A few blocks at a time."""
    step = max(1, CHUNK.get(gradients.device.type, 1 << 24) // math.prod(gradients.shape[1:]))
    return (slice(first, first + step) for first in range(0, len(gradients), step))


@dataclass(frozen=True)
class MFAC(Solver):
    """Second-order scores as WoodFisher's, over long blocks, from stored gradients.

    >>> MFAC(block=None, gradients=64).statistic
    StoredGradients(block=None, most=64)
    """

    name: ClassVar[str] = "mfac"
    paper: ClassVar[str] = "Frantar, Kurtic and Alistarh 2021, M-FAC: Efficient Matrix-Free Approximations"
    cost: ClassVar[str] = "about 2 · N · min(N, B) a weight"
    memory: ClassVar[str] = "N numbers a weight"

    block: int | None = 2048  # B; None for the whole layer
    damping: float = 0.001  # λ, in units of the Fisher's mean diagonal
    gradients: int = 512  # N, the first of those that come

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.gradients, int) or isinstance(self.gradients, bool) or self.gradients < 1:
            raise InputError(f"The gradients of mfac are {self.gradients!r}; give a whole number from 1, such as 512.")

    @property
    def statistic(self) -> StoredGradients:
        return StoredGradients(self.block, self.gradients)

    def scores(self, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return scores(weight, gathered, keep, damping)

    def compensate(self, weight: Tensor, before: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return compensate(weight, before, keep, gathered, damping)
