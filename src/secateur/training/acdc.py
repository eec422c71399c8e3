"""AC/DC: training that is dense and sparse in turn, so that one run gives a dense and a sparse model.

After a dense warm-up, compressed phases (masks by magnitude, made at their start and then fixed) take turns with
decompressed ones, in which every weight is free again; the last phase is compressed. Peste et al. 2021,
arXiv:2106.12379. The defaults are the 600 epochs of the CAP paper's appendix. Cost: one selection a compressed phase.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..allocate import ALLOCATIONS, Group, allocate
from ..errors import InputError, check_fraction, check_whole


@dataclass(frozen=True)
class Phase:
    """From `start` up to and without `end`."""

    start: int
    end: int
    compressed: bool


@dataclass(frozen=True)
class ACDC:
    """How long the phases last, in whatever the loop counts, such as epochs.

    >>> schedule = ACDC(warmup=3, phases=1, compressed=2, decompressed=1, last_decompressed=2, last_compressed=4)
    >>> "".join("S" if schedule.phase_at(step).compressed else "d" for step in range(schedule.length))
    'dddSSddSSSS'
    """

    warmup: int = 150  # dense, before the first pruning
    phases: int = 7  # compressed ones before the last
    compressed: int = 25
    decompressed: int = 25
    last_decompressed: int = 50
    last_compressed: int = 75
    allocation: str = "global"

    def __post_init__(self) -> None:
        check_whole(least=0, warmup=self.warmup, phases=self.phases)
        check_whole(compressed=self.compressed, decompressed=self.decompressed)
        check_whole(last_decompressed=self.last_decompressed, last_compressed=self.last_compressed)
        if self.allocation not in ALLOCATIONS:
            raise InputError(f"There is no allocation {self.allocation!r}; choose {' or '.join(ALLOCATIONS)}.")

    @property
    def length(self) -> int:
        """Of the whole training."""
        return self.all_phases()[-1].end

    def all_phases(self) -> list[Phase]:
        """In order; they meet, and the last is compressed."""
        lengths = [self.warmup]
        for number in range(self.phases):
            last = number == self.phases - 1
            lengths += [self.compressed, self.last_decompressed if last else self.decompressed]
        ends = [sum(lengths[: n + 1]) for n in range(len(lengths))] + [sum(lengths) + self.last_compressed]
        found = [Phase(start, end, bool(n % 2)) for n, (start, end) in enumerate(pairwise([0, *ends]))]
        return [phase for phase in found if phase.start < phase.end]

    def phase_at(self, step: int) -> Phase:
        """The phase that a step (or epoch) lies in.

        Raises:
            InputError: when it lies after the last.
        """
        for phase in self.all_phases():
            if phase.start <= step < phase.end:
                return phase
        raise InputError(f"The phases end at {self.length}, and {step} is asked for; let the training end with them.")

    def masks_for(self, phase: Phase, weights: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """What to keep from the start of a phase on: the largest weights of all, or every weight."""
        if not phase.compressed:
            return {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}
        check_fraction(sparsity=sparsity)
        together = [tuple(weights)] if self.allocation == "global" else [(name,) for name in weights]
        groups = [Group(names, round(sparsity * sum(weights[n].numel() for n in names))) for names in together]
        return allocate({name: weight.detach().abs() for name, weight in weights.items()}, groups)
