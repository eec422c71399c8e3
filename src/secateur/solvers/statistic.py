"""What a solver asks of the gradients: a statistic, made for each weight while they stream by.

Statistics are frozen dataclasses: equal ones are gathered once, however many solvers ask. `BlockFishers` is the usual
one; the others stand beside the method that needs them.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..distributed import Processes
from ..fisher import BlockFisher, bytes_needed
from .obs import loss_increase


class Gathering(Protocol):
    """One weight's part of a statistic, while gradients arrive and afterwards."""

    @property
    def values(self) -> Tensor:
        """What the solver is given, its blocks on the first axis."""

    @property
    def trace(self) -> float:
        """The sum of the Fisher's diagonal, in whose mean relative damping counts; 0 without a Fisher."""

    def add(self, gradients: Tensor) -> None:
        """Take `gradients` (gradients, …)."""

    def join(self, processes: Processes) -> None:
        """What other processes were given counts too, before `finish`."""

    def finish(self, gradients: int) -> None:
        """There were so many in all; those that never reached this weight were zero."""


@dataclass(frozen=True)
class Statistic(ABC):
    """What is gathered; `shape` is always that of the weight's matrix (out, in)."""

    predicts: ClassVar[int] = 0  # 0: its ½ δᵀFδ is unknown; of several, the highest predicts for all
    smaller: ClassVar[str] = "a smaller block"  # what makes it take less memory

    @abstractmethod
    def size(self, shape: tuple[int, int]) -> int:
        """How many consecutive weights the solver sees together."""

    @abstractmethod
    def bytes_needed(self, shape: tuple[int, int], dtype: torch.dtype, gradients: int | None) -> int:
        """What it takes for so many gradients; None where nobody knows how many will come."""

    @abstractmethod
    def start(
        self, shape: tuple[int, int], dtype: torch.dtype, gradients: int | None, device: torch.device | str = "cpu"
    ) -> Gathering:
        """Nothing gathered yet."""

    def used(self, gradients: int) -> int:
        """How many of so many gradients go into it."""
        return gradients

    def loss_increase(self, change: Tensor, values: Tensor) -> Tensor:
        """(blocks,): ½ δᵀFδ of changes (blocks, size); only where `predicts` is above 0."""
        raise NotImplementedError(f"{type(self).__name__} holds no Fisher, so it predicts no loss increase.")


@dataclass(frozen=True)
class BlockFishers(Statistic):
    """The Fisher in diagonal blocks: (blocks, size · (size + 1) / 2), packed (see triangles.py)."""

    predicts: ClassVar[int] = 3

    block: int  # B

    def size(self, shape: tuple[int, int]) -> int:
        return min(self.block, math.prod(shape))

    def bytes_needed(self, shape: tuple[int, int], dtype: torch.dtype, gradients: int | None) -> int:
        return bytes_needed(math.prod(shape), self.block, dtype)

    def start(self, shape, dtype, gradients, device="cpu") -> BlockFisher:
        return BlockFisher(math.prod(shape), self.block, device, dtype)

    def loss_increase(self, change: Tensor, values: Tensor) -> Tensor:
        return loss_increase(change, values)
