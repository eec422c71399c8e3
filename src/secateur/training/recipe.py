"""A training run as frozen dataclasses: what is trained, on what, how the rate falls, and when zeros appear.

Everything that can be known to be impossible is refused here, before a model is loaded. recipe_file.py reads and writes
recipes as YAML.
"""

import re
from dataclasses import dataclass, field

from ..errors import InputError
from .augment import AUGMENTATIONS, Augmentation
from .schedules import RAMPS, RATES, ramp

Target = float | str  # a fraction of zeros, or a pattern such as "2:4"
UNITS = ("epochs", "steps")
PRECISIONS = ("no", "bf16", "fp16")


class Refused(InputError):
    """A value that cannot be used; `key` says which, so that the file's line can be named."""

    def __init__(self, key: str, message: str):
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class Data:
    """Which images; see `DataSource`."""

    dataset: str | None = None
    data_dir: str | None = None
    class_map: str | None = None
    image_size: int | None = None
    workers: int | None = None
    skip_unreadable: bool = False
    download: bool = False
    images: int | None = None  # of an epoch; all there are by default
    eval_images: int | None = None  # to measure on; all there are by default

    def __post_init__(self) -> None:
        _whole(images=self.images, eval_images=self.eval_images, image_size=self.image_size)
        _whole(least=0, workers=self.workers)


@dataclass(frozen=True)
class LearningRate:
    """η against time: linear and cosine fall from the highest to the lowest, once or in cycles."""

    highest: float = 5e-4
    lowest: float = 1e-5
    shape: str = "linear"
    cycle: int | None = None  # T; the whole run by default
    warmup: int = 0
    unit: str = "epochs"  # of cycle and warmup

    def __post_init__(self) -> None:
        _among(self, "shape", RATES)
        _among(self, "unit", UNITS)
        _whole(cycle=self.cycle)
        _whole(least=0, warmup=self.warmup)
        if not 0 <= self.lowest <= self.highest or self.highest == 0:
            raise Refused("lowest", f"The learning rate falls from {self.highest:g} to {self.lowest:g}; give 0 ≤ lowest"
                          " ≤ highest, and a highest above 0.")  # fmt: skip


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
        _among(self, "unit", UNITS)
        _whole(every=self.every, steps=self.steps, samples=self.samples, recomputations=self.recomputations)
        _whole(samples_per_gradient=self.samples_per_gradient)
        _whole(least=0, start=self.start)
        if bool(self.targets) == (self.ramp is not None):
            raise Refused("targets", "A gradual pruning needs targets or a ramp, one of them.")
        for key in ("targets", "save", "through"):
            _rising(key, getattr(self, key))
        if self.ramp is not None:
            self._check_ramp()

    def _check_ramp(self) -> None:
        _among(self, "ramp", RAMPS)
        if self.first is None or self.last is None or not 0 <= self.first < self.last <= 1:
            raise Refused("first", f"The ramp goes from {self.first} to {self.last}; give a first below the last, both"
                          " from 0 to 1.")  # fmt: skip
        if outside := [t for t in self.through if not self.first <= t <= self.last]:
            raise Refused("through", f"The ramp from {self.first:g} to {self.last:g} cannot pass through {outside[0]:g}.")

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
class Distillation:
    """A dense teacher: its classes' probabilities at a temperature take part of the labels' weight."""

    teacher: str | None = None  # a model; by default the one that is trained, as it was before
    weight: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise Refused("weight", f"The teacher's weight is {self.weight}; give a number above 0, 1 at the most.")
        if not self.temperature > 0:
            raise Refused("temperature", f"The teacher's temperature is {self.temperature}; give a number above 0.")


@dataclass(frozen=True)
class Checkpoints:
    """What a killed run continues from: written after so many epochs (or steps) and after every change of the masks."""

    every: int = 1
    unit: str = "epochs"
    keep: int = 2  # the last so many

    def __post_init__(self) -> None:
        _among(self, "unit", UNITS)
        _whole(every=self.every, keep=self.keep)


@dataclass(frozen=True)
class Recipe:
    """One training run."""

    model: str
    epochs: int
    batch_size: int  # images of one optimizer step, on all processes together
    about: str = ""
    layers: tuple[str, ...] = ()
    pretrained: bool = True
    from_sparse: bool = False  # refuse a model without zeros
    num_classes: int | None = None
    seed: int = 0
    micro_batch: int | None = None  # images of one forward pass; by default a process's whole part
    precision: str | None = None  # no, bf16 or fp16; by default what `accelerate launch` says
    compile: bool = False
    optimizer: str = "adamw"  # timm's name
    augmentation: Augmentation = AUGMENTATIONS["deit"]
    ema: float | None = None  # decay of averaged weights, which are then those that are measured and written
    data: Data = field(default_factory=Data)
    learning_rate: LearningRate = field(default_factory=LearningRate)
    gradual: Gradual | None = None
    distillation: Distillation | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)

    def __post_init__(self) -> None:
        _whole(epochs=self.epochs, batch_size=self.batch_size, micro_batch=self.micro_batch)
        _whole(num_classes=self.num_classes)
        _whole(least=0, seed=self.seed)
        if self.precision is not None:
            _among(self, "precision", PRECISIONS)
        if self.ema is not None and not 0 < self.ema < 1:
            raise Refused("ema", f"The decay of the averaged weights is {self.ema}; give a number between 0 and 1.")
        if self.micro_batch and self.batch_size % self.micro_batch:
            raise Refused("micro_batch", f"{self.micro_batch} does not divide the batch size of {self.batch_size}.")
        self._check_lengths()

    def _check_lengths(self) -> None:
        rate = self.learning_rate
        if rate.unit == "epochs" and rate.warmup >= self.epochs:
            raise Refused("learning_rate", f"The warm-up of {rate.warmup} epochs is no shorter than the run, which has"
                          f" {self.epochs}.")  # fmt: skip
        if rate.unit == "epochs" and rate.cycle is not None and rate.cycle > self.epochs:
            raise Refused("learning_rate", f"A cycle of {rate.cycle} epochs is longer than the run, which has"
                          f" {self.epochs}.")  # fmt: skip
        if self.gradual is not None and self.gradual.unit == "epochs":
            check_steps(self.gradual, self.epochs, "epochs")


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
    _rising("gradual", sparsities)
    return sparsities



# --- checks -----------------------------------------------------------------------------------------------------------


def _whole(least: int = 1, **named: int | None) -> None:
    for key, value in named.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise Refused(key, f"{key} is {value!r}; give a whole number from {least}.")


def _among(owner: object, key: str, choices: tuple[str, ...]) -> None:
    if getattr(owner, key) not in choices:
        raise Refused(key, f"{key} is {getattr(owner, key)!r}; give {', '.join(choices[:-1])} or {choices[-1]}.")


def _rising(key: str, targets: tuple[Target, ...]) -> None:
    """Fractions from 0 to 1 that rise; patterns such as 2:4 are taken as they stand."""
    for target in targets:
        if isinstance(target, str):
            if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", target):
                raise Refused(key, f"{target!r} is no sparsity; give a fraction of zeros, or a pattern such as 2:4.")
        elif not 0 <= target <= 1:
            hint = f"; did you mean {target / 100:g}?" if 1 < target <= 100 else "; give fractions from 0 to 1."
            raise Refused(key, f"The sparsity {target:g} is no fraction{hint}")
    fractions = [t for t in targets if not isinstance(t, str)]
    for before, after in zip(fractions, fractions[1:], strict=False):
        if after <= before:
            raise Refused(key, f"The sparsities must rise: {after:g} follows {before:g}.")

