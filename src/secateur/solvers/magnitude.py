"""Magnitude pruning: the smallest weights leave, the others stay as they are (Han et al. 2015). Needs no data."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from .base import Solver


@dataclass(frozen=True)
class Magnitude(Solver):
    """|w|, and no compensation.

    >>> Magnitude().block is None
    True
    """

    name: ClassVar[str] = "magnitude"
    paper: ClassVar[str] = "Han et al. 2015, Learning both Weights and Connections for Efficient Neural Networks"
    cost: ClassVar[str] = "none"
    memory: ClassVar[str] = "none"

    block: None = field(default=None, init=False)  # no Fisher, so none of its options
    damping: float = field(default=0.0, init=False)
    relative: bool = field(default=True, init=False)

    def scores(self, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return torch.where(keep, weight.abs(), -torch.inf)

    def compensate(self, weight: Tensor, before: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return torch.where(keep, weight, 0.0)
