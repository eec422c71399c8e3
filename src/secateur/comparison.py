"""Several methods at several sparsities on one model: the gradients are collected once, and each method scores once."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from torch import nn

from .allocate import ALLOCATIONS, allocate, groups_for
from .batches import Loss
from .batchnorm import batch_norms, recalibrate_
from .errors import InputError, nearest
from .evaluation import Evaluation
from .fisher import collect
from .layers import select_layers
from .progress import Track, silent
from .prune import (
    PruneResult, check_finite, check_groups, compensated, damping_of, predicted_increase, score, starting_masks, write_,
)  # fmt: skip
from .solvers import Solver, solver_named


@dataclass(frozen=True)
class Contender:
    """A method, its options, and how it spreads the zeros over the layers."""

    solver: Solver
    allocation: str
    label: str


def contender(text: str, allocation: str = "global", **options: object) -> Contender:
    """The contender that `text` describes: a method, then its allocation and options after colons.

    >>> contender("cap:uniform:block=96").solver.block
    96
    """
    method, *rest = text.split(":")
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
    return Contender(solver_named(method, **options), allocation, text)


def _number(text: str, name: str, value: str) -> bool | int | float:
    if value in ("true", "false"):
        return value == "true"
    try:
        return int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        raise InputError(f"{name}={value} in the method {text!r} is no number.") from None


@dataclass(frozen=True)
class Row:
    """One contender at one sparsity."""

    contender: Contender
    result: PruneResult
    evaluation: Evaluation


def compare(
    model: nn.Module,
    batches: Iterable,
    contenders: Sequence[Contender],
    sparsities: Sequence[float],
    evaluate: Callable[[nn.Module], Evaluation],
    *,
    layers: str | list[str] | None = None,
    loss: Loss | None = None,
    samples_per_gradient: int = 1,
    keep_model: Callable[[nn.Module, Row], None] = lambda model, row: None,
    track: Track = silent,
) -> Iterable[Row]:
    """Yield a row for every contender and sparsity; the model is pruned in between and ends as it was.

    Args:
        evaluate: of the pruned model.
        keep_model: called with each pruned model, to save it.
    Raises:
        InputError, NumericsError: as `prune_` does, before the first gradient where it can be known.
    """
    weights = select_layers(model, layers)
    check_finite(weights)
    keep = starting_masks(weights, None)
    sizes = {name: weight.size for name, weight in weights.items()}
    goals = {(a, s): groups_for(sizes, s, a) for a in {c.allocation for c in contenders} for s in sparsities}
    for groups in goals.values():
        check_groups(groups, keep)
    if batch_norms(model) and iter(batches) is batches:
        batches = list(batches)
    return _rows(
        model, batches, contenders, sparsities, evaluate, weights, keep, goals, loss, samples_per_gradient,
        keep_model, track,
    )  # fmt: skip


def _rows(
    model, batches, contenders, sparsities, evaluate, weights, keep, goals, loss, samples_per_gradient, keep_model, track
):
    blocks = {c.solver.block for c in contenders} - {None}
    curvatures = (
        collect(
            model, batches, weights, blocks, loss=loss, samples_per_gradient=samples_per_gradient, track=track
        )
        if blocks
        else {}
    )
    shared = curvatures[max(blocks)] if blocks else None  # what every contender's predicted increase is measured with
    dense = {name: value.clone() for name, value in model.state_dict().items()}
    scored: dict[Solver, tuple] = {}
    try:
        for chosen in contenders:
            solver = chosen.solver
            curvature = curvatures.get(solver.block)
            if solver not in scored:
                scored = {solver: _timed(score, weights, keep, solver, curvature, track)}  # one method's at a time
            scores, scoring = scored[solver]
            for sparsity in sparsities:
                start = time.perf_counter()
                kept = allocate(scores, goals[chosen.allocation, sparsity])
                moved = compensated(weights, keep, kept, solver, curvature, track)
                seconds = scoring + time.perf_counter() - start
                predicted = predicted_increase(weights, moved, shared) if shared else None
                write_(weights, moved)
                recalibrate_(model, batches, track)
                result = PruneResult(
                    masks={n: weights[n].from_matrix(k) for n, k in kept.items()},
                    method=solver.name,
                    options=asdict(solver),
                    allocation=chosen.allocation,
                    sparsity=sparsity,
                    predicted_loss_increase=predicted,
                    seconds=seconds,
                    gradients=shared.gradients if shared else 0,
                    settings={"samples_per_gradient": samples_per_gradient, "damping": damping_of(solver, curvature)},
                )
                row = Row(chosen, result, evaluate(model))
                keep_model(model, row)
                model.load_state_dict(dense)
                yield row
    finally:
        model.load_state_dict(dense)


def _timed(function, *args) -> tuple:
    start = time.perf_counter()
    return function(*args), time.perf_counter() - start
