"""Several methods at several sparsities on one model: the gradients are collected once, and each method scores once."""

import copy
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from .allocate import ALLOCATIONS, Group, allocate, allocation_name, groups_for, left_out, patterns_of
from .batches import Loss
from .batchnorm import batch_norms, enough, recalibrate_
from .curvature import Curvature, collect
from .errors import InputError, check_whole, nearest
from .layers import select_layers
from .patterns import NM
from .progress import Track, silent
from .prune import PruneResult
from .resources import DEFAULT, Resources
from .settings import solver_for
from .solvers import Solver, Statistic, options_of, solver_named
from .sparsity import Sparsity, Wanted, read_sparsity
from .steps import (
    Masks,
    Weights,
    check_blocks,
    check_start,
    compensated,
    in_own_shapes,
    predicted_increase,
    repeatable,
    score,
    starting_masks,
    write_,
)


@dataclass(frozen=True)
class Contender:
    """A method, its options, and how it spreads the zeros over the layers."""

    solver: Solver
    allocation: str
    label: str
    said: Mapping[str, Any] | None = field(default=None, compare=False)  # of its text; the rest is for `fitted` to say


def contender(text: str, allocation: str = "global", **fisher_options: object) -> Contender:
    """The contender that `text` describes: a method, then its allocation and options after colons.

    `fisher_options` go to a method that has them; what `text` says comes before them.

    >>> contender("cap:uniform:block=96").solver.block
    96
    """
    method, *rest = text.split(":")
    solver_named(method)  # or its error
    options = {name: value for name, value in fisher_options.items() if name in options_of(method)}
    for word in rest:
        name, equals, value = word.partition("=")
        if equals:
            options[name] = _number(text, name, value)
        elif word in ALLOCATIONS:
            allocation = word
        else:
            raise InputError(
                f"{word!r} in the method {text!r} is neither an allocation ({', '.join(ALLOCATIONS)}) nor an option"
                f" such as block=96.{nearest(word, ALLOCATIONS)}"
            )
    return Contender(solver_named(method, **options), allocation, text, options)


def fitted(chosen: Contender, model: nn.Module, paper: bool = False) -> Contender:
    """With the options of the model's family, or the paper's, where its text says none; see `solver_for`."""
    if chosen.said is None:
        return chosen
    return replace(chosen, solver=solver_for(model, chosen.solver.name, paper, **chosen.said), said=None)


WORDS = {"true": True, "false": False, "none": None}


def _number(text: str, name: str, value: str) -> bool | int | float | None:
    if value in WORDS:
        return WORDS[value]
    try:
        return int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        raise InputError(f"{name}={value} in the method {text!r} is no number.") from None


@dataclass(frozen=True)
class Row:
    """One contender at one sparsity."""

    contender: Contender
    result: PruneResult
    evaluation: Any  # what `evaluate` returned


def compare(
    model: nn.Module,
    batches: Iterable | None,
    contenders: Sequence[Contender],
    sparsities: Sequence[Sparsity],
    evaluate: Callable[[nn.Module], Any] = lambda model: None,
    *,
    layers: str | list[str] | None = None,
    loss: Loss | None = None,
    samples_per_gradient: int = 1,
    recalibrate: bool = True,
    resources: Resources = DEFAULT,
    track: Track = silent,
) -> Iterator[Row]:
    """Yield a row for every contender and sparsity while the model is as pruned for it; it ends as it was.

    Args:
        contenders: those made of text take the options of the model's family where the text says none.
        evaluate: of the pruned model.
        The others: as in `prune_`.
    Raises:
        InputError, NumericsError: as `prune_` does, before the first gradient where it can be known.

    >>> model = nn.Sequential(nn.Linear(8, 6))
    >>> rows = compare(model, None, [contender("magnitude")], [0.5, 0.75], layers="0")
    >>> [row.result.zeros for row in rows]
    [24, 36]
    """
    contenders = [fitted(chosen, model) for chosen in contenders]
    weights = select_layers(model, layers)
    keep = starting_masks(weights, None)
    goals = goals_for(weights, keep, contenders, sparsities)
    kinds = {tuple(patterns_of(groups).items()) for _, groups in itertools.chain(*goals.values())}
    check_whole(samples_per_gradient=samples_per_gradient)
    recalibrate = recalibrate and batches is not None and bool(batch_norms(model))
    batches = repeatable(batches, [c.solver for c in contenders], passes=1 + recalibrate)
    settling = list(enough(batches)) if recalibrate else []  # held: every row needs them
    statistics = dict.fromkeys(c.solver.statistic for c in contenders if c.solver.statistic is not None)
    curvatures: dict[Statistic, Curvature] = {}
    if statistics:
        curvatures = collect(
            model, batches, weights, statistics,
            loss=loss, samples_per_gradient=samples_per_gradient, resources=resources, track=track,
        )  # fmt: skip
    reference = _reference(curvatures)  # every contender's prediction is made with it
    dense = copy.deepcopy(model.state_dict())

    def curvature_of(solver: Solver) -> Curvature | None:
        return None if solver.statistic is None else curvatures[solver.statistic]

    @functools.lru_cache(maxsize=len(kinds))  # one method's, for all patterns; an allocation changes nothing in them
    def scored(solver: Solver, patterns: tuple[tuple[str, NM], ...]) -> tuple[dict[str, Tensor], float]:
        start = time.perf_counter()
        return score(weights, keep, solver, curvature_of(solver), dict(patterns), track), time.perf_counter() - start

    try:
        for chosen, (wanted, groups) in ((c, goal) for c in contenders for goal in goals[c.allocation]):
            patterns = patterns_of(groups)
            known = tuple(patterns.items()) if chosen.solver.greedy else ()
            (scores, scoring), start = scored(chosen.solver, known), time.perf_counter()
            used = curvature_of(chosen.solver) or reference
            kept = allocate(scores, groups)
            moved = compensated(weights, keep, kept, chosen.solver, curvature_of(chosen.solver), track)
            predicted = predicted_increase(weights, moved, reference) if reference else None
            write_(weights, moved)
            if recalibrate and moved:
                recalibrate_(model, settling, track)
            result = PruneResult(
                masks=in_own_shapes(weights, kept),
                solver=chosen.solver,
                allocation=allocation_name(wanted, chosen.allocation),
                sparsity=wanted,
                predicted_loss_increase=predicted,
                seconds=scoring + time.perf_counter() - start,
                gradients=used.gradients if used else 0,
                samples_per_gradient=samples_per_gradient,
                patterns=patterns,
                left_out=left_out(groups),
            )
            yield Row(chosen, result, evaluate(model))
            model.load_state_dict(dense)
    finally:
        model.load_state_dict(dense)


def _reference(curvatures: Mapping[Statistic, Curvature]) -> Curvature | None:
    """The one that predicts best, with the largest blocks; None where none does."""
    able = [c for c in curvatures.values() if c.predicts]
    return max(able, key=lambda c: (c.statistic.predicts, max(c.sizes.values())), default=None)


def goals_for(
    weights: Weights, keep: Masks, contenders: Iterable[Contender], sparsities: Sequence[Sparsity]
) -> dict[str, list[tuple[Wanted, list[Group]]]]:
    """{allocation: each sparsity, and the groups of layers that reach it}.

    Raises:
        InputError, NumericsError: when the weights cannot get there from `keep`.
    """
    wanted = [read_sparsity(sparsity) for sparsity in sparsities]
    goals = {c.allocation: [(w, groups_for(weights, keep, w, c.allocation)) for w in wanted] for c in contenders}
    for _, groups in itertools.chain(*goals.values()):
        check_start(weights, keep, groups)
    for chosen in contenders:
        for _, groups in goals[chosen.allocation]:
            check_blocks(weights, chosen.solver, patterns_of(groups))
    return goals
