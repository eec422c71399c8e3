"""The steps of a pruning over a model's layers, and what is checked before them.

Masks, scores and moved weights are matrices (out, in) here; a solver sees them in its statistic's blocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from .allocate import Group, allocate
from .curvature import Curvature
from .errors import InputError, NumericsError
from .fisher import from_blocks, to_blocks
from .layers import PrunableWeight
from .patterns import NM
from .progress import Track, silent
from .solvers import Solver

Masks = dict[str, Tensor]  # {layer: bool, True where kept}
Weights = Mapping[str, PrunableWeight]


def score(
    weights: Weights,
    keep: Masks,
    solver: Solver,
    curvature: Curvature | None,
    patterns: Mapping[str, NM],
    track: Track = silent,
) -> dict[str, Tensor]:
    """A score for every weight; the smallest leaves first, as far as the layer's pattern lets it (see allocate.py)."""
    damping = damping_of(solver, curvature)
    scores = {}
    for name, weight in track(weights.items(), f"{solver.name} scores", len(weights)):
        matrix = weight.matrix().to(weight.precision)
        size, gathered = _block(weight, curvature)
        values, kept = (to_blocks(m.reshape(-1), size) for m in (matrix, keep[name]))
        scores_of = partial(solver.scores_within, patterns[name]) if name in patterns else solver.scores
        scored = scores_of(values, kept, gathered, damping)
        scores[name] = from_blocks(scored, weight.size).view(keep[name].shape)
    return scores


def compensated(
    weights: Weights, before: Masks, keep: Masks, solver: Solver, curvature: Curvature | None, track: Track = silent
) -> dict[str, Tensor]:
    """The weights of the layers that lose some, once only `keep` remain, in the model's own type."""
    damping = damping_of(solver, curvature)
    moved = {}
    for name, weight in track(weights.items(), f"{solver.name} weights", len(weights)):
        matrix = weight.matrix().to(weight.precision)
        if not matrix[~keep[name]].any():
            continue
        size, gathered = _block(weight, curvature)
        values, was, kept = (to_blocks(m.reshape(-1), size) for m in (matrix, before[name], keep[name]))
        solved = solver.compensate(values, was, kept, gathered, damping)
        solved = from_blocks(solved, weight.size).view(matrix.shape).to(weight.parameter.dtype)
        landed = keep[name] & (matrix != 0) & (solved == 0)  # on zero, though kept: the count of zeros stays exact
        moved[name] = torch.where(landed, torch.finfo(solved.dtype).tiny, solved)
        if not torch.isfinite(moved[name]).all():
            raise NumericsError(f"{solver.name} gave {name} a weight that is not finite; try a larger damping.")
    return moved


def predicted_increase(weights: Weights, moved: Mapping[str, Tensor], curvature: Curvature) -> float:
    """½ δᵀFδ of the whole model, without the damping: how much the Fisher expects the loss to rise."""
    statistic, total = curvature.statistic, 0.0
    for name, matrix in moved.items():
        change = matrix.to(weights[name].precision) - weights[name].matrix()
        change = to_blocks(change.reshape(-1), curvature.sizes[name])
        total += float(statistic.loss_increase(change, curvature[name]).sum(dtype=torch.float64))
    return total


@torch.no_grad()
def write_(weights: Weights, matrices: Mapping[str, Tensor]) -> None:
    """Put the matrices in the place of the model's weights."""
    for name, matrix in matrices.items():
        weights[name].parameter.copy_(weights[name].from_matrix(matrix))


def in_own_shapes(weights: Weights, masks: Masks) -> Masks:
    """Masks that are matrices, in the shapes of their weights."""
    return {name: weights[name].from_matrix(mask) for name, mask in masks.items()}


def damping_of(solver: Solver, curvature: Curvature | None) -> float:
    """λ in the Fisher's own units."""
    if curvature is None:
        return 0.0
    return solver.damping * (curvature.mean_diagonal if solver.relative else 1.0)


def _block(weight: PrunableWeight, curvature: Curvature | None) -> tuple[int, Tensor]:
    """How many weights the solver sees together, and what was gathered for them: nothing, for a method without."""
    if curvature is None:
        return weight.size, torch.empty(0)
    return curvature.sizes[weight.name], curvature[weight.name]


# --- what is checked before the work ---------------------------------------------------------------------------------


def check_start(weights: Weights, keep: Masks, groups: Sequence[Group]) -> None:
    """Raise NumericsError when a weight is NaN or infinite, InputError when more zeros are there than asked for."""
    for name, weight in weights.items():
        bad = int((~torch.isfinite(weight.parameter)).sum())
        if bad:
            raise NumericsError(
                f"{name} holds {bad} weights of {weight.size} that are NaN or infinite; load the model again, or"
                " train it with a smaller learning rate."
            )
    allocate({name: torch.where(mask, 0.0, -torch.inf) for name, mask in keep.items()}, groups)


def check_blocks(weights: Weights, solver: Solver, patterns: Mapping[str, NM]) -> None:
    """Raise InputError where blocks would cut the groups of a pattern that a greedy method has to see whole."""
    if not solver.greedy or solver.statistic is None:
        return
    for name, pattern in patterns.items():
        size = solver.statistic.size(weights[name].shape)
        if size % pattern.of:
            near = max(round(size / pattern.of), 1) * pattern.of
            raise InputError(
                f"{solver.name} needs blocks of whole groups: those of {name} have {size} weights, the groups of"
                f" {pattern} {pattern.of}; try block={near}."
            )


def starting_masks(weights: Weights, masks: Masks | None) -> Masks:
    """As matrices, where pruning starts: the masks given, and elsewhere the weights that are not zero."""
    started = {}
    for name, weight in weights.items():
        mask = (masks or {}).get(name, weight.parameter != 0)
        if mask.shape != weight.parameter.shape or mask.dtype != torch.bool:
            raise InputError(
                f"The mask of {name} is {mask.dtype} of shape {tuple(mask.shape)}; it must be torch.bool of shape"
                f" {tuple(weight.parameter.shape)}."
            )
        started[name] = weight.matrix(mask.to(weight.parameter.device))
    return started


def repeatable(batches: Iterable | None, solvers: Iterable[Solver], passes: int) -> Iterable:
    """The batches, so that they can be gone through `passes` times; nothing, where none are given or needed.

    Raises:
        InputError: when there are none and a solver needs them.
    """
    if batches is None:
        for solver in solvers:
            if solver.statistic is not None:
                raise InputError(f"{solver.name} works from batches of images and labels, and none are given.")
        return ()
    return list(batches) if passes > 1 and iter(batches) is batches else batches
