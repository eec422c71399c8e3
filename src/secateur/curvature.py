"""The Fisher of every chosen weight of a model, made from batches within a given memory.

Where the Fishers do not fit together, groups of layers take turns: a pass over the same batches for each group.
Cost: a forward and backward pass a batch and group, and the Fisher's own (fisher.py).
"""

import itertools
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from .batches import Loss, samples_in
from .fisher import BlockFisher, bytes_needed
from .gradients import stream_gradients
from .layers import PrunableWeight
from .memory import available_bytes, forget_most_held, held_bytes, most_held_bytes
from .plan import MemoryPlan, make_plan
from .progress import Track, length, silent
from .resources import DEFAULT, Resources
from .spill import Spill

log = logging.getLogger(__name__)
SHARE = 0.6  # of the free memory that is taken unasked
SMALL = 0.1  # of the memory: no Fisher for which one would first have to find out what a batch takes
Weights = Mapping[str, PrunableWeight]


@dataclass(frozen=True)
class Curvature:
    """The Fisher of every weight in blocks of one size, and what it was made of."""

    sizes: Mapping[str, int]  # layer → B, or the whole weight where that is less
    gradients: int  # N
    mean_diagonal: float  # over all weights: the scale that relative damping refers to
    _fishers: Mapping[str, Tensor] = field(repr=False)

    def __getitem__(self, name: str) -> Tensor:
        """(blocks, size · (size + 1) / 2), packed (triangles.py); read from the disk where it waits there."""
        return self._fishers[name]


def collect(
    model: nn.Module,
    batches: Iterable,
    weights: Weights,
    blocks: Iterable[int],
    *,
    loss: Loss | None = None,
    samples_per_gradient: int = 1,
    resources: Resources = DEFAULT,
    track: Track = silent,
) -> dict[int, Curvature]:
    """The Fisher for every block size in `blocks`, from as many passes over the batches as the memory asks for.

    Args:
        batches: the same ones each time they are gone through.
    Raises:
        InputError: when the Fishers fit neither in memory nor on the disk, with what would.
    """
    sizes = sorted(set(blocks))
    how = {"loss": loss, "samples_per_gradient": samples_per_gradient, "resources": resources}
    batches, plan = _planned(model, batches, weights, sizes, how)
    fishers: dict[int, dict | Spill] = {size: Spill(plan.folder) if plan.folder else {} for size in sizes}
    traces, count = dict.fromkeys(sizes, 0.0), 0
    for number, names in enumerate(plan.groups, 1):
        title = "gradients" if plan.passes == 1 else f"gradients {number}/{plan.passes}"
        made, count = _one_pass(model, batches, {n: weights[n] for n in names}, sizes, how, _titled(track, title))
        for size, of_size in made.items():
            traces[size] += sum(fisher.trace for fisher in of_size.values())
            while of_size:
                name, fisher = of_size.popitem()
                _put(fishers[size], name, fisher.packed)
    total = sum(weight.size for weight in weights.values())
    return {
        size: Curvature(
            sizes={name: min(size, weight.size) for name, weight in weights.items()},
            gradients=count,
            mean_diagonal=traces[size] / total,
            _fishers=fishers[size],
        )
        for size in sizes
    }


def _one_pass(model, batches, weights: Weights, sizes: list[int], how: dict, track: Track):
    """{size: {layer: Fisher}} of some layers, and the number of gradients."""
    made = {
        size: {n: BlockFisher(w.size, size, w.parameter.device, w.precision) for n, w in weights.items()}
        for size in sizes
    }

    def sink(name: str, gradients: Tensor) -> None:
        for of_size in made.values():
            of_size[name].add(gradients)

    count = stream_gradients(model, batches, weights, sink, **how, track=track)
    for of_size in made.values():
        for fisher in of_size.values():
            fisher.finish(count)
    return made, count


def _planned(model, batches, weights: Weights, sizes: list[int], how: dict) -> tuple[Iterable, MemoryPlan]:
    """The plan, after a trial of one batch has shown what a batch takes; and the batches from their start."""
    resources, device = how["resources"], next(iter(weights.values())).parameter.device
    budget = resources.bytes
    if budget is None:
        budget = held_bytes(device) + int(SHARE * available_bytes(device))
    needs = {n: sum(bytes_needed(w.size, size, w.precision) for size in sizes) for n, w in weights.items()}
    if sum(needs.values()) < SMALL * (budget - held_bytes(device)):
        return batches, make_plan(needs, held_bytes(device), budget)
    iterator = iter(batches)
    first = list(itertools.islice(iterator, 1))
    forget_most_held(device)
    start = time.perf_counter()
    if first:
        m = min(how["samples_per_gradient"], samples_in(first[0]))
        stream_gradients(model, first, weights, lambda name, gradients: None, **{**how, "samples_per_gradient": m})
    seconds = time.perf_counter() - start
    plan = make_plan(needs, most_held_bytes(device), budget, resources.spill)
    count = length(batches)
    if iterator is batches:  # can be gone through once: what the trial took goes back in front
        batches = itertools.chain(first, iterator) if plan.passes == 1 else [*first, *iterator]
    log.info(plan.describe(count, seconds))
    return batches, plan


def _put(fishers: dict | Spill, name: str, packed: Tensor) -> None:
    if isinstance(fishers, Spill):
        fishers.put(name, packed)
    else:
        fishers[name] = packed


def _titled(track: Track, title: str) -> Track:
    return lambda iterable, description, total=None: track(iterable, title, total)
