"""The changes of the masks that a timeline can ask for: one function for each action."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from ..distributed import Processes
from ..layers import prunable_weights
from .acdc import Phase
from .feed import Batch
from .gradual import prune_step_
from .learning import backward_
from .rigl import random_masks, random_scores, starting_groups, updated_masks
from .run import Run
from .timeline import Event


def change_masks_(run: Run, event: Event, batch: list[Batch]) -> None:
    """Carry out the event; what is averaged starts anew from the changed weights, which an average would blur."""
    ACTIONS[event.action](run, event, batch)
    if run.average is not None and event.is_measured:
        run.average.module.load_state_dict(run.model.state_dict())


def _prune_(run: Run, event: Event, batch: list[Batch]) -> None:
    """Gradual pruning: any method of the library."""
    assert event.target is not None and run.recipe.gradual is not None
    masks = run.keeper.masks
    result = prune_step_(run.model, run.feed, run.recipe, event.target, event.step, masks, run.track)
    run.keeper.set_masks_(masks | result.masks)


def _switch_(run: Run, event: Event, batch: list[Batch]) -> None:
    """AC/DC: the largest weights of all stay alone, or every weight is free."""
    assert run.recipe.acdc is not None
    section, phase = run.recipe.acdc, Phase(event.step, event.step + 1, event.action == "compress")
    _keep_(run, section.phases.masks_for(phase, _weights(run), section.sparsity))


def _start_(run: Run, event: Event, batch: list[Batch]) -> None:
    """RigL: random masks, with the zeros that each layer is to have from now on."""
    assert run.recipe.rigl is not None
    section = run.recipe.rigl
    shapes = {name: weight.shape for name, weight in _weights(run).items()}
    groups = starting_groups(shapes, section.sparsity, section.distribution)
    _keep_(run, random_masks(shapes, groups, run.recipe.seed))


def _move_(run: Run, event: Event, batch: list[Batch]) -> None:
    """RigL: the smallest weights go, and others come where the gradient of this step's images is large."""
    assert run.recipe.rigl is not None
    schedule = run.recipe.rigl.over(run.timeline.steps)
    backward_(run, batch)
    weights = _weights(run)
    gradients: dict[str, Tensor | None] = {name: weight.grad for name, weight in weights.items()}
    if schedule.growth == "random":
        seed = int(np.random.SeedSequence([run.recipe.seed, event.step, 3]).generate_state(1)[0])
        scores = random_scores({name: weight.shape for name, weight in weights.items()}, seed)
        gradients = {name: score.to(weights[name].device) for name, score in scores.items()}
    fraction = schedule.fraction_at(event.step)
    _keep_(run, updated_masks(weights, gradients, run.keeper.masks, fraction))
    run.stepper.zero_grad()


def _keep_(run: Run, masks: Mapping[str, Tensor]) -> None:
    run.keeper.set_masks_(same_masks(masks, run.processes))


def same_masks(masks: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """The first process's, on all of them."""
    return {name: processes.copy_(mask.to(torch.uint8)).bool() for name, mask in masks.items()}


def _weights(run: Run) -> dict[str, Tensor]:
    """Those that have masks, in the model's order: ties and random numbers go by it, also after a checkpoint."""
    masks = run.keeper.masks
    return {name: weight.parameter for name, weight in prunable_weights(run.model).items() if name in masks}


ACTIONS: dict[str, Callable[[Run, Event, list[Batch]], None]] = {
    "prune": _prune_,
    "compress": _switch_,
    "decompress": _switch_,
    "start": _start_,
    "move": _move_,
}
