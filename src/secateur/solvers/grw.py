"""Gradient times weight, GrW (the first-order rival in the appendix of the CAP paper, after Sanh et al. 2020).

  score            Σ_k |w · ∇_w L_k|, over the gradients k
  with `product`   |w · Σ_k ∇_w L_k|, which the paper finds worse than magnitude: near a minimum the sum is noise
What stays is not moved.
Cost: two operations a weight and gradient, one a weight to score; two numbers a weight.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..distributed import Processes
from ..errors import InputError
from .base import Solver
from .statistic import Statistic


@dataclass(frozen=True)
class GradientSums(Statistic):
    """The means of |g| and of g over all gradients: (1, 2, weights)."""

    def size(self, shape: tuple[int, int]) -> int:
        return math.prod(shape)

    def bytes_needed(self, shape: tuple[int, int], dtype: torch.dtype, gradients: int | None) -> int:
        return 2 * math.prod(shape) * dtype.itemsize

    def start(self, shape, dtype, gradients, device="cpu") -> "Sums":
        return Sums(torch.zeros(1, 2, math.prod(shape), dtype=dtype, device=device))


class Sums:
    """Sums |g| and g with `add`; `values` are their means after `finish`."""

    trace = 0.0

    def __init__(self, zeros: Tensor):
        self.values = zeros

    def add(self, gradients: Tensor) -> None:
        gradients = gradients.flatten(1).to(self.values.dtype)
        self.values[0, 0] += gradients.abs().sum(0)
        self.values[0, 1] += gradients.sum(0)

    def join(self, processes: Processes) -> None:
        processes.sum_(self.values)

    def finish(self, gradients: int) -> None:
        self.values /= gradients


@dataclass(frozen=True)
class GrW(Solver):
    """First-order scores: how strongly each weight and its gradients meet; no compensation.

    >>> GrW().statistic
    GradientSums()
    """

    name: ClassVar[str] = "grw"
    paper: ClassVar[str] = "Sanh et al. 2020, Movement Pruning; as Kuznedelev et al. 2023 apply it in one shot"
    cost: ClassVar[str] = "1 a weight"
    memory: ClassVar[str] = "2 numbers a weight"

    block: None = field(default=None, init=False)  # no Fisher, so none of its options
    damping: float = field(default=0.0, init=False)
    relative: bool = field(default=True, init=False)
    product: bool = False  # |w · Σ∇|, in place of Σ|w · ∇|

    def __post_init__(self) -> None:
        if not isinstance(self.product, bool):
            raise InputError(f"The product of grw is {self.product!r}; give true or false.")

    @property
    def statistic(self) -> GradientSums:
        return GradientSums()

    def scores(self, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return torch.where(keep, (weight * gathered[:, int(self.product)]).abs(), -torch.inf)

    def compensate(self, weight: Tensor, before: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        return torch.where(keep, weight, 0.0)
