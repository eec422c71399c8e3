"""What the solvers ask of the gradients of every chosen weight of a model, made from batches within a given memory.

Mostly that is the Fisher. Where what is gathered does not fit together, groups of layers take turns: a pass over the
same batches for each group.
Cost: a forward and backward pass a batch and group, and the Fisher's own (fisher.py).
"""

import itertools
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .batches import Loss, samples_in
from .distributed import ALONE, Processes
from .gradients import stream_gradients
from .layers import PrunableWeight
from .memory import available_bytes, forget_most_held, held_bytes, most_held_bytes
from .plan import MemoryPlan, make_plan
from .progress import Track, length, silent
from .resources import DEFAULT, Resources
from .solvers import Gathering, Statistic
from .spill import Spill

log = logging.getLogger(__name__)
SHARE = 0.6  # of the free memory that is taken unasked
SMALL = 0.1  # of the memory: no Fisher for which one would first have to find out what a batch takes
Weights = Mapping[str, PrunableWeight]


@dataclass(frozen=True)
class Curvature:
    """One statistic of every weight, such as the Fisher in blocks of one size, and what it was made of."""

    statistic: Statistic
    sizes: Mapping[str, int]  # layer → B, or the whole weight where that is less
    gradients: int  # N, of those that are in it
    mean_diagonal: float  # over all weights: the scale that relative damping refers to
    _values: Mapping[str, Tensor] = field(repr=False)

    @property
    def predicts(self) -> bool:
        """Whether it knows ½ δᵀFδ."""
        return self.statistic.predicts > 0

    def __getitem__(self, name: str) -> Tensor:
        """What a solver is given for this weight; read from the disk where it waits there."""
        return self._values[name]


def collect(
    model: nn.Module,
    batches: Iterable,
    weights: Weights,
    statistics: Iterable[Statistic],
    *,
    loss: Loss | None = None,
    samples_per_gradient: int = 1,
    resources: Resources = DEFAULT,
    track: Track = silent,
    processes: Processes = ALONE,
) -> dict[Statistic, Curvature]:
    """Each of the statistics, from as many passes over the batches as the memory asks for.

    Args:
        batches: the same ones each time they are gone through.
        processes: where several call this together, each with its part of the batches, all get the statistics of all.
    Raises:
        InputError: when the Fishers fit neither in memory nor on the disk, with what would.
    """
    asked = list(dict.fromkeys(statistics))
    how = {"loss": loss, "samples_per_gradient": samples_per_gradient, "resources": resources}
    most = _most_gradients(batches, samples_per_gradient)
    batches, plan = _planned(model, batches, weights, asked, most, how, processes)
    values: dict[Statistic, dict | Spill] = {s: Spill(plan.folder) if plan.folder else {} for s in asked}
    traces, count = dict.fromkeys(asked, 0.0), 0
    for number, names in enumerate(plan.groups, 1):
        title = "gradients" if plan.passes == 1 else f"gradients {number}/{plan.passes}"
        some = {name: weights[name] for name in names}
        made, count = _one_pass(model, batches, some, asked, most, how, _titled(track, title), processes)
        for statistic, gathered in made.items():
            traces[statistic] += sum(part.trace for part in gathered.values())
            while gathered:
                name, part = gathered.popitem()
                _put(values[statistic], name, part.values)
    total = sum(weight.size for weight in weights.values())
    return {
        statistic: Curvature(
            statistic=statistic,
            sizes={name: statistic.size(weight.shape) for name, weight in weights.items()},
            gradients=statistic.used(count),
            mean_diagonal=traces[statistic] / total,
            _values=values[statistic],
        )
        for statistic in asked
    }


def _one_pass(
    model, batches, weights: Weights, asked: list[Statistic], most: int | None, how: dict, track: Track, processes
):
    """{statistic: {layer: what was gathered}} of some layers, and the number of gradients."""
    made: dict[Statistic, dict[str, Gathering]] = {
        statistic: {n: statistic.start(w.shape, w.precision, most, w.parameter.device) for n, w in weights.items()}
        for statistic in asked
    }

    def sink(name: str, gradients: Tensor) -> None:
        for gathered in made.values():
            gathered[name].add(gradients)

    count = stream_gradients(model, batches, weights, sink, **how, track=track)
    count = int(processes.sum_(torch.tensor(count)))
    for gathered in made.values():
        for part in gathered.values():
            part.join(processes)
            part.finish(count)
    return made, count


def _most_gradients(batches: Iterable, samples_per_gradient: int) -> int | None:
    """How many there can be, where the batches can tell before the first."""
    samples = getattr(batches, "samples", None)
    if isinstance(batches, list | tuple):
        samples = sum(map(samples_in, batches))
    return samples // samples_per_gradient if isinstance(samples, int) and samples_per_gradient > 0 else None


def _planned(
    model, batches, weights: Weights, asked: list[Statistic], most: int | None, how: dict, processes: Processes
) -> tuple[Iterable, MemoryPlan]:
    """The plan, after a trial of one batch has shown what a batch takes; and the batches from their start."""
    resources, device = how["resources"], next(iter(weights.values())).parameter.device
    budget = resources.bytes
    if budget is None:
        budget = held_bytes(device) + int(SHARE * available_bytes(device) / processes.count)
    needs = {n: sum(s.bytes_needed(w.shape, w.precision, most) for s in asked) for n, w in weights.items()}
    smaller = " and ".join(dict.fromkeys(s.smaller for s in asked))
    if sum(needs.values()) < SMALL * (budget - held_bytes(device)):
        plan = make_plan(needs, held_bytes(device), budget, smaller=smaller)
        return batches, _agreed(plan, processes)
    iterator = iter(batches)
    first = list(itertools.islice(iterator, 1))
    forget_most_held(device)
    start = time.perf_counter()
    if first:
        m = min(how["samples_per_gradient"], samples_in(first[0]))
        stream_gradients(model, first, weights, lambda name, gradients: None, **{**how, "samples_per_gradient": m})
    seconds = time.perf_counter() - start
    plan = _agreed(make_plan(needs, most_held_bytes(device), budget, resources.spill, smaller), processes)
    count = length(batches)
    if iterator is batches:  # can be gone through once: what the trial took goes back in front
        batches = itertools.chain(first, iterator) if plan.passes == 1 else [*first, *iterator]
    log.info(plan.describe(count, seconds))
    return batches, plan


def _agreed(plan: MemoryPlan, processes: Processes) -> MemoryPlan:
    """The first process's groups for all: they go through the layers together."""
    groups, folder = processes.agreed([plan.groups, str(plan.folder) if plan.folder else None])
    return replace(plan, groups=groups, folder=Path(folder) if folder else None)


def _put(values: dict | Spill, name: str, tensor: Tensor) -> None:
    if isinstance(values, Spill):
        values.put(name, tensor)
    else:
        values[name] = tensor


def _titled(track: Track, title: str) -> Track:
    return lambda iterable, description, total=None: track(iterable, title, total)
