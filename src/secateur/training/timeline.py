"""What happens when in a run, worked out from its recipe before it starts: rates, changes of the masks, models written.

Steps are counted from 0; an event of step s takes place before optimizer step s, what is saved at s after the one
before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InputError
from . import schedules
from .checks import Target
from .masking import Alternating, Gradual, Moving, check_steps
from .recipe import Recipe


@dataclass(frozen=True)
class Event:
    """A change of the masks."""

    step: int
    action: str  # one of changes.ACTIONS
    target: Target | None = None  # the sparsity afterwards

    def __str__(self) -> str:
        return self.action if self.target is None else f"{self.action} to {shown(self.target)}"

    @property
    def is_measured(self) -> bool:
        """Whether the model is measured and kept safe before and after: not where masks move every few steps."""
        return self.action != "move"


@dataclass(frozen=True)
class Timeline:
    """A run in optimizer steps."""

    recipe: Recipe
    steps_per_epoch: int
    events: dict[int, Event]  # in the order of their steps
    saves: Mapping[int, str]  # step → the name of the model that is written there

    @property
    def steps(self) -> int:
        return self.recipe.epochs * self.steps_per_epoch

    def learning_rate(self, step: int) -> float:
        rate = self.recipe.learning_rate
        unit = self.steps_per_epoch if rate.unit == "epochs" else 1
        cycle = rate.cycle * unit if rate.cycle else self.steps
        return schedules.learning_rate(step, rate.shape, rate.highest, rate.lowest, cycle, rate.warmup * unit)

    def target_at(self, step: int) -> Target | None:
        """What the last change of the masks before this step was for."""
        return next((event.target for event in reversed(self.events.values()) if event.step < step), None)

    def evaluates_at(self, step: int) -> bool:
        """Whether the model is measured before this step: at the end of epochs, and where the masks change."""
        event = self.events.get(step)
        return step % self.steps_per_epoch == 0 or step in self.saves or (event is not None and event.is_measured)

    def checkpoints_at(self, step: int) -> bool:
        when = self.recipe.checkpoints
        unit = self.steps_per_epoch if when.unit == "epochs" else 1
        return step % (when.every * unit) == 0 or step in self.saves or step == self.steps


def make_timeline(recipe: Recipe, images: int) -> Timeline:
    """The run over so many images an epoch; incomplete batches are left out.

    Raises:
        InputError: when an epoch has fewer images than a batch, or the pruning steps do not fit.
    """
    steps_per_epoch = images // recipe.batch_size
    if not steps_per_epoch:
        raise InputError(
            f"A batch takes {recipe.batch_size} images and an epoch has {images}; give a smaller batch_size."
        )
    steps = recipe.epochs * steps_per_epoch
    rate = recipe.learning_rate
    if rate.unit == "steps" and rate.warmup >= steps:
        raise InputError(f"The warm-up of {rate.warmup} steps is no shorter than the run, which has {steps}.")
    events: list[Event] = []
    saves = {steps: "final"}
    if recipe.gradual is not None:
        events = _pruning(recipe.gradual, recipe.epochs, steps_per_epoch)
        saves = _ends(events, recipe.gradual.wanted(), steps)
    elif recipe.acdc is not None:
        events, saves = _alternating(recipe.acdc, steps_per_epoch), {steps: shown(recipe.acdc.sparsity)}
    elif recipe.rigl is not None:
        events, saves = _moving(recipe.rigl, steps), {steps: shown(recipe.rigl.sparsity)}
    return Timeline(recipe, steps_per_epoch, {event.step: event for event in events}, saves)


def _pruning(gradual: Gradual, epochs: int, steps_per_epoch: int) -> list[Event]:
    in_steps = gradual.unit == "steps"
    length, unit = (epochs * steps_per_epoch, 1) if in_steps else (epochs, steps_per_epoch)
    targets = check_steps(gradual, length, gradual.unit)
    return [Event((gradual.start + i * gradual.every) * unit, "prune", target) for i, target in enumerate(targets)]


def _alternating(section: Alternating, steps_per_epoch: int) -> list[Event]:
    phases = [phase for phase in section.phases.all_phases() if phase.start or phase.compressed]
    return [
        Event(p.start * steps_per_epoch, "compress", section.sparsity)
        if p.compressed
        else Event(p.start * steps_per_epoch, "decompress")
        for p in phases
    ]


def _moving(section: Moving, steps: int) -> list[Event]:
    schedule = section.over(steps)
    moves = [Event(step, "move") for step in range(steps) if schedule.updates_at(step)]
    return [Event(0, "start", section.sparsity), *moves]


def _ends(events: list[Event], wanted: tuple[Target, ...], steps: int) -> dict[int, str]:
    """Where the cycles of the wanted sparsities end, and how their models are called."""
    ends = [event.step for event in events[1:]] + [steps]
    return {end: shown(event.target) for event, end in zip(events, ends, strict=True) if event.target in wanted}


def shown(target: Target | None) -> str:
    """A sparsity as part of a file's name: 0.75, 2of4."""
    return target.replace(":", "of") if isinstance(target, str) else f"{target:g}"
