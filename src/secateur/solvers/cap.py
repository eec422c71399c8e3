"""CAP, the Correlation Aware Pruner (Kuznedelev et al., NeurIPS 2023, algorithm 1).

Inside a block, weights leave one at a time, each time the cheapest given those already gone, and the others move to
make up for it. The score of a weight is ½ δᵀFδ of everything that has left up to and including it, so a threshold over
all blocks takes a prefix of each. The weights that remain are the joint solution for the final mask (obs.compensate).
Cost: size³/3 operations a block, one block of memory at a time.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import native
from .base import Solver
from .obs import _checked, _compensate, _in_chunks, _loss_increase, compensate, inverse_kept


def scores(weight: Tensor, fisher: Tensor, keep: Tensor | None = None, damping: float = 0.0) -> Tensor:
    """The loss increase at which each weight leaves; the smallest leaves first.

    Args:
        weight: (blocks, size).
        fisher: (blocks, size, size), symmetric.
        keep: (blocks, size), False for weights that have left before: their score is −inf, and what their leaving
            costs is where the others start (nothing, when they are zero already).
        damping: λ, added to the diagonal.
    """
    keep = torch.ones_like(weight, dtype=torch.bool) if keep is None else keep
    if native.usable(weight, fisher):
        return _checked(*native.cap_scores(weight, keep, fisher, damping), damping)
    return _in_chunks(_scores, weight, keep, fisher, damping)


def _scores(weight: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> Tensor:
    """All blocks in step, one weight of each at a time."""
    inverse, used = inverse_kept(keep, fisher, damping)
    fisher = fisher.double() + torch.diag_embed(used[:, None].expand(weight.shape))
    current = _compensate(weight.double(), keep, fisher, 0.0)
    total = _loss_increase(current - weight.double(), keep, fisher, 0.0)
    alive, result = keep.clone(), torch.full_like(weight, -torch.inf)
    blocks = torch.arange(len(weight), device=weight.device)
    for _ in range(int(keep.sum(1).max())):
        diagonal = inverse.diagonal(dim1=1, dim2=2)
        saliency = torch.where(alive, current**2 / (2 * diagonal), torch.inf)
        cost, first = saliency.min(1)
        active = alive.any(1)
        total = total + torch.where(active, cost, 0.0)
        result[blocks[active], first[active]] = total[active].to(result.dtype)
        column = torch.where(active[:, None], inverse[blocks, :, first], 0.0)  # (blocks, size)
        pivot = torch.where(active, diagonal[blocks, first], 1.0)[:, None]
        current = current - column * (current[blocks, first][:, None] / pivot)
        inverse = inverse - column[:, :, None] * (column / pivot)[:, None, :]
        alive[blocks, first] = False
    return result


@dataclass(frozen=True)
class CAP(Solver):
    """Correlation Aware Pruner: greedy inside each block, exact for the weights that remain."""

    name: ClassVar[str] = "cap"
    paper: ClassVar[str] = "Kuznedelev et al. 2023, CAP: Correlation-Aware Pruning"

    block: int = 192  # B
    damping: float = 0.01  # λ, in units of the Fisher's mean diagonal

    def scores(self, weight: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> Tensor:
        return scores(weight, fisher, keep, damping)

    def compensate(self, weight: Tensor, before: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> Tensor:
        return compensate(weight, keep, fisher, damping)
