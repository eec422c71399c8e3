"""WoodFisher (Singh and Alistarh 2020): every weight is scored as if it left alone, and all leave at once.

  score    w_q² / (2 [F⁻¹]_qq)
  update   δ = −F⁻¹ Σ_q e_q w_q / [F⁻¹]_qq   (each weight's own update, added up)
With blocks of one weight this is the diagonal approximation of OBD (LeCun et al. 1989), scaled the WoodFisher way.
Cost: size³ operations a block to score, 4/3 size³ to compensate.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Solver
from .obs import inverse_diagonal, solve_kept


def scores(weight: Tensor, fisher: Tensor, keep: Tensor | None = None, damping: float = 0.0) -> Tensor:
    """The loss increase of each weight's leaving alone; −inf for weights that have left before."""
    keep = torch.ones_like(weight, dtype=torch.bool) if keep is None else keep
    saliency = weight**2 / (2 * inverse_diagonal(keep, fisher, damping))
    return torch.where(keep, saliency, -torch.inf)


def compensate(weight: Tensor, before: Tensor, keep: Tensor, fisher: Tensor, damping: float = 0.0) -> Tensor:
    """The updates of all that leave between the masks `before` and `keep`, added up; zero where dropped."""
    leaving = before & ~keep
    scaled = torch.where(leaving, weight / inverse_diagonal(before, fisher, damping), 0.0)
    return torch.where(keep, weight - solve_kept(scaled, before, fisher, damping), 0.0)


@dataclass(frozen=True)
class WoodFisher(Solver):
    """Second-order scores without correlations between the weights that leave.

    >>> WoodFisher(block=96)
    WoodFisher(block=96, damping=0.1, relative=True)
    """

    name: ClassVar[str] = "woodfisher"
    paper: ClassVar[str] = "Singh and Alistarh 2020, WoodFisher: Efficient Second-Order Approximation"
    cost: ClassVar[str] = "B² a weight"
    memory: ClassVar[str] = "(B + 1) / 2 numbers a weight"

    block: int = 192  # B
    damping: float = 0.1  # λ, in units of the Fisher's mean diagonal

    def scores(self, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return scores(weight, gathered, keep, damping)

    def compensate(self, weight: Tensor, before: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return compensate(weight, before, keep, gathered, damping)
