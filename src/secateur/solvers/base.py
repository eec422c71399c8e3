"""What a pruning method is: a score for every weight, and new values for those that stay."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import InputError
from ..patterns import NM
from .statistic import BlockFishers, Statistic


@dataclass(frozen=True)
class Solver(ABC):
    """A method and its options. Blockwise: weights are (blocks, size), and `gathered` is what its statistic makes.

    Scores: the smallest leaves first; weights that have left before score −inf.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    cost: ClassVar[str]  # of its scores, beside the gradients; in a phrase
    memory: ClassVar[str]  # of what it asks of the gradients
    greedy: ClassVar[bool] = False  # one after the other leaves, so a score depends on which others may

    block: int | None = None  # B
    damping: float = 0.0  # λ
    relative: bool = True  # λ in units of the Fisher's mean diagonal, or as it stands

    def __post_init__(self) -> None:
        if self.block is not None and (not isinstance(self.block, int) or self.block < 1):
            raise InputError(
                f"The block of {self.name} is {self.block!r}; give a whole number of weights, such as 192."
            )
        if not 0 <= self.damping < float("inf"):
            raise InputError(f"The damping of {self.name} is {self.damping}; give a number from 0, such as 0.01.")

    @property
    def statistic(self) -> Statistic | None:
        """What is gathered of the gradients for it; None for a method that needs none."""
        return None if self.block is None else BlockFishers(self.block)

    @abstractmethod
    def scores(self, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        """(blocks, size); `keep` is False for weights that have left before."""

    def scores_within(self, pattern: NM, weight: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        """The scores of weights that are to end in a pattern; only a greedy method has others for them."""
        return self.scores(weight, keep, gathered, damping)

    @abstractmethod
    def compensate(self, weight: Tensor, before: Tensor, keep: Tensor, gathered: Tensor, damping: float) -> Tensor:
        """The weights once only `keep` remain of those that `before` had kept: zero elsewhere."""
