"""A training run as frozen dataclasses: what is trained, on what, how the rate falls, and when zeros appear.

Everything that can be known to be impossible is refused here, before a model is loaded. recipe_file.py reads and writes
recipes as YAML.
"""

from dataclasses import dataclass, field

from .augment import AUGMENTATIONS, Augmentation
from .checks import Refused, check_choice, check_wholes
from .distill import Distillation
from .masking import UNITS, Alternating, Gradual, Moving, check_steps
from .schedules import RATES

PRECISIONS = ("no", "bf16", "fp16")


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
        check_wholes(images=self.images, eval_images=self.eval_images, image_size=self.image_size)
        check_wholes(least=0, workers=self.workers)


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
        check_choice(self, "shape", RATES)
        check_choice(self, "unit", UNITS)
        check_wholes(cycle=self.cycle)
        check_wholes(least=0, warmup=self.warmup)
        if not 0 <= self.lowest <= self.highest or self.highest == 0:
            raise Refused("lowest", f"The learning rate falls from {self.highest:g} to {self.lowest:g}; give 0 ≤ lowest"
                          " ≤ highest, and a highest above 0.")  # fmt: skip


@dataclass(frozen=True)
class Checkpoints:
    """What a killed run continues from: written after so many epochs (or steps) and after every change of the masks."""

    every: int = 1
    unit: str = "epochs"
    keep: int = 2  # the last so many

    def __post_init__(self) -> None:
        check_choice(self, "unit", UNITS)
        check_wholes(every=self.every, keep=self.keep)


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
    gradual: Gradual | None = None  # of these three, one at the most; without, zeros stay where they are
    acdc: Alternating | None = None
    rigl: Moving | None = None
    distillation: Distillation | None = None
    teacher: str | None = None  # a model; by default the one that is trained, as it was before
    checkpoints: Checkpoints = field(default_factory=Checkpoints)

    def __post_init__(self) -> None:
        check_wholes(epochs=self.epochs, batch_size=self.batch_size, micro_batch=self.micro_batch)
        check_wholes(num_classes=self.num_classes)
        check_wholes(least=0, seed=self.seed)
        if self.precision is not None:
            check_choice(self, "precision", PRECISIONS)
        if self.ema is not None and not 0 < self.ema < 1:
            raise Refused("ema", f"The decay of the averaged weights is {self.ema}; give a number between 0 and 1.")
        if self.micro_batch and self.batch_size % self.micro_batch:
            raise Refused("micro_batch", f"{self.micro_batch} does not divide the batch size of {self.batch_size}.")
        given = [key for key in ("gradual", "acdc", "rigl") if getattr(self, key) is not None]
        if len(given) > 1:
            raise Refused(given[1], f"The recipe has {' and '.join(given)}; give one of them.")
        if self.teacher is not None and self.distillation is None:
            raise Refused(
                "teacher", "There is a teacher without a distillation section; add one, such as {weight: 0.5}."
            )
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
        if self.acdc is not None and self.acdc.phases.length != self.epochs:
            raise Refused("acdc", f"The phases last {self.acdc.phases.length} epochs together, and the run"
                          f" {self.epochs}.")  # fmt: skip
