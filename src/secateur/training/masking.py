"""The sections of a recipe that say when zeros appear: gradual pruning, and the rivals that train sparse."""

from dataclasses import dataclass, field

from ..errors import InputError, check_fraction
from .acdc import ACDC
from .checks import Refused, Target, check_choice, check_rising, check_wholes
from .rigl import RigL
from .schedules import RAMPS, ramp

UNITS = ("epochs", "steps")


@dataclass(frozen=True)
class Gradual:
    """Pruning in steps of rising sparsity: the targets as listed, or a ramp from the first to the last.

    The model at the end of each cycle whose sparsity stands in `save` is measured and written.
    """

    method: str = "cap"  # as for `secateur compare`, such as cap:uniform:block=96
    targets: tuple[Target, ...] = ()
    ramp: str | None = None
    first: float | None = None  # of the ramp
    last: float | None = None
    through: tuple[float, ...] = ()
    start: int = 0
    every: int = 20
    unit: str = "epochs"  # of start and every
    steps: int | None = None  # of the ramp; by default as many as fit
    save: tuple[Target, ...] = ()  # by default the targets, or what the ramp goes through and ends with
    samples: int = 4096  # of each Fisher
    samples_per_gradient: int = 1
    recomputations: int = 1

    def __post_init__(self) -> None:
        check_choice(self, "unit", UNITS)
        check_wholes(every=self.every, steps=self.steps, samples=self.samples, recomputations=self.recomputations)
        check_wholes(samples_per_gradient=self.samples_per_gradient)
        check_wholes(least=0, start=self.start)
        if bool(self.targets) == (self.ramp is not None):
            raise Refused("targets", "A gradual pruning needs targets or a ramp, one of them.")
        for key in ("targets", "save", "through"):
            check_rising(key, getattr(self, key))
        if self.ramp is not None:
            self._check_ramp()

    def _check_ramp(self) -> None:
        check_choice(self, "ramp", RAMPS)
        if self.first is None or self.last is None or not 0 <= self.first < self.last <= 1:
            raise Refused("first", f"The ramp goes from {self.first} to {self.last}; give a first below the last, both"
                          " from 0 to 1.")  # fmt: skip
        if outside := [t for t in self.through if not self.first <= t <= self.last]:
            raise Refused(
                "through", f"The ramp from {self.first:g} to {self.last:g} cannot pass through {outside[0]:g}."
            )

    def sparsities(self, fitting: int) -> tuple[Target, ...]:
        """The target of each pruning step, where so many steps fit into the run."""
        if self.ramp is None:
            return self.targets
        assert self.first is not None and self.last is not None  # checked
        return ramp(self.ramp, self.first, self.last, self.steps or fitting, self.through)

    def wanted(self) -> tuple[Target, ...]:
        """The sparsities whose models are written."""
        if self.save:
            return self.save
        return self.targets or tuple(sorted({*self.through, self.last or 0.0}))


@dataclass(frozen=True)
class Alternating:
    """AC/DC: dense and sparse phases in turn, in epochs; see acdc.py."""

    sparsity: float
    phases: ACDC = field(default_factory=ACDC)

    def __post_init__(self) -> None:
        check_fraction(sparsity=self.sparsity)


@dataclass(frozen=True)
class Moving:
    """RigL, SViTE and SET: sparse from the first step, the masks moving every so many steps; see rigl.py."""

    sparsity: float
    interval: int = 100
    until: float = 0.75  # the part of the run after which masks move no more
    fraction: float = 0.3
    growth: str = "gradient"
    distribution: str = "erk"

    def __post_init__(self) -> None:
        check_fraction(sparsity=self.sparsity)
        if not 0 < self.until <= 1:
            raise Refused("until", f"Masks move until {self.until} of the run; give a number above 0, 1 at the most.")
        self.over(1)  # refuses what RigL refuses

    def over(self, steps: int) -> RigL:
        """The schedule of a run of so many steps."""
        end = max(1, round(self.until * steps))
        return RigL(end, self.interval, self.fraction, self.growth, self.distribution)


def check_steps(gradual: Gradual, length: int, unit: str) -> tuple[Target, ...]:
    """The targets, once it is known that all of them fit into a run of this length, and those to save among them.

    Raises:
        InputError: with what does not fit.
    """
    fitting = len(range(gradual.start, length, gradual.every))
    needed = gradual.steps or len(gradual.targets) or 1
    if fitting < needed:
        raise Refused("gradual", f"{needed} pruning steps, one every {gradual.every} {unit} from {gradual.start} on, do"
                      f" not fit into {length} {unit}; {fitting} do.")  # fmt: skip
    try:
        sparsities = gradual.sparsities(fitting)
    except InputError as error:
        raise Refused("gradual", str(error)) from None
    if missing := [t for t in gradual.wanted() if t not in sparsities]:
        raise Refused("gradual", f"The model at {missing[0]} is to be saved, but the pruning steps are"
                      f" {', '.join(map(str, sparsities))}.")  # fmt: skip
    check_rising("gradual", sparsities)
    return sparsities
