"""Optimal Brain Damage (LeCun, Denker and Solla 1989): the Fisher's diagonal alone, scaled as WoodFisher scales it.

  score    w_q² (F_qq + λ) / 2
What stays is not moved: without correlations nothing can make up for what leaves. This is WoodFisher with B = 1.
Cost: one operation a weight and gradient for F, one a weight to score; one number a weight.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from .base import Solver


@dataclass(frozen=True)
class OBD(Solver):
    """Second-order scores from the diagonal alone, and no compensation.

    >>> OBD().block
    1
    """

    name: ClassVar[str] = "obd"
    paper: ClassVar[str] = "LeCun, Denker and Solla 1989, Optimal Brain Damage"
    cost: ClassVar[str] = "1 a weight"
    memory: ClassVar[str] = "1 number a weight"

    block: int = field(default=1, init=False)
    damping: float = 0.1  # λ, in units of the Fisher's mean diagonal

    def scores(self, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        saliency = 0.5 * weight**2 * (gathered.view_as(weight) + damping)
        return torch.where(keep, saliency, -torch.inf)

    def compensate(self, weight: Tensor, before: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return torch.where(keep, weight, 0.0)
