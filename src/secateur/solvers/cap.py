"""CAP, the Correlation Aware Pruner (Kuznedelev et al., NeurIPS 2023, algorithm 1).

Inside a block, weights leave one at a time, each time the cheapest given those already gone, and the others move to
make up for it. The score of a weight is ½ δᵀFδ of everything that has left up to and including it, so a threshold over
all blocks takes a prefix of each. The weights that remain are the joint solution for the final mask (obs.compensate).
Cost: 4/3 size³ operations a block to score (factor, invert in two steps, eliminate), with one block of memory a thread;
kept³/3 to compensate.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from .. import native
from ..patterns import NM
from .base import Solver
from .obs import best_kept, by_blocks, compensate, factor_kept, half_form


def scores(
    weight: Tensor, fisher: Tensor, keep: Tensor | None = None, damping: float = 0.0, group: int = 0, most: int = 0
) -> Tensor:
    """The loss increase at which each weight leaves; the smallest leaves first.

    Args:
        weight: (blocks, size).
        fisher: (blocks, size, size), symmetric; or packed (see triangles.py).
        keep: (blocks, size), False for weights that have left before: their score is −inf, and what their leaving
            costs is where the others start (nothing, when they are zero already).
        damping: λ, added to the diagonal.
        group, most: of every `group` neighbours at most `most` leave, those that have left before among them: a weight
            whose group has no more to give is passed over, and scores inf. 0 for no such bound.

    >>> scores(torch.tensor([[3.0, 1.0]]), torch.eye(2)[None])
    tensor([[5.0000, 0.5000]])
    """
    keep = torch.ones_like(weight, dtype=torch.bool) if keep is None else keep
    kernel, twin = (partial(function, group=group, most=most) for function in (native.cap_scores, _scores))
    return by_blocks(kernel, twin, weight, keep, fisher, damping)


def _scores(
    weight: Tensor, keep: Tensor, fisher: Tensor, damping: float, group: int = 0, most: int = 0
) -> tuple[Tensor, Tensor]:
    """All blocks in step, one weight of each at a time."""
    factor, used = factor_kept(keep, fisher, damping)
    inverse = torch.cholesky_inverse(factor)  # the identity where dropped
    current = best_kept(weight, keep, fisher, factor, used)
    damped = fisher.double() + torch.diag_embed(used[:, None].expand(weight.shape))
    total = half_form(current - weight.double(), damped)
    alive, result = keep.clone(), torch.full_like(weight, -torch.inf).where(~keep, torch.inf)
    blocks = torch.arange(len(weight), device=weight.device)
    for _ in range(int(keep.sum(1).max())):
        diagonal = inverse.diagonal(dim1=1, dim2=2)
        may_leave = alive & _has_room(alive, group, most)
        saliency = torch.where(may_leave, current**2 / (2 * diagonal), torch.inf)
        cost, first = saliency.min(1)
        active = may_leave.any(1)
        total = total + torch.where(active, cost, 0.0)
        result[blocks[active], first[active]] = total[active].to(result.dtype)
        column = torch.where(active[:, None], inverse[blocks, :, first], 0.0)  # (blocks, size)
        pivot = torch.where(active, diagonal[blocks, first], 1.0)[:, None]
        current = current - column * (current[blocks, first][:, None] / pivot)
        inverse.addcmul_(column[:, :, None], (column / pivot)[:, None, :], value=-1)
        alive[blocks[active], first[active]] = False
    return result, used


def _has_room(alive: Tensor, group: int, most: int) -> Tensor:
    """Where the group of a weight has given fewer than `most`."""
    if not group:
        return torch.ones_like(alive)
    gone = (~alive).unflatten(1, (-1, group)).sum(2, keepdim=True)
    return (gone < most).expand(-1, -1, group).flatten(1)


@dataclass(frozen=True)
class CAP(Solver):
    """Correlation Aware Pruner: greedy inside each block, exact for the weights that remain.

    >>> CAP(block=96)
    CAP(block=96, damping=0.01, relative=True)
    """

    name: ClassVar[str] = "cap"
    paper: ClassVar[str] = "Kuznedelev et al. 2023, CAP: Correlation-Aware Pruning"
    cost: ClassVar[str] = "4/3 · B² a weight, one block at a time"
    memory: ClassVar[str] = "(B + 1) / 2 numbers a weight"
    greedy: ClassVar[bool] = True

    block: int = 192  # B
    damping: float = 0.01  # λ, in units of the Fisher's mean diagonal

    def scores(self, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return scores(weight, gathered, keep, damping)

    def scores_within(self, pattern: NM, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return scores(weight, gathered, keep, damping, pattern.of, pattern.leave)

    def compensate(self, weight: Tensor, before: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return compensate(weight, keep, gathered, damping)
