"""Pruning is four steps: gradients → curvature → scores → compensated weights. `prune_` joins them; read it first."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn

from .allocate import allocate, groups_for, staged
from .batches import Loss
from .batchnorm import batch_norms, recalibrate_
from .errors import InputError, NumericsError
from .fisher import Curvature, collect, from_blocks, to_blocks
from .layers import PrunableWeight, select_layers
from .progress import Track, silent
from .solvers import Solver, loss_increase, solver_named

Masks = dict[str, Tensor]  # {layer: bool tensor of the weight's shape, True where kept}


@dataclass(frozen=True)
class PruneResult:
    """What a pruning did: the masks, and the numbers that describe it."""

    masks: Masks
    method: str
    options: dict
    allocation: str
    sparsity: float | dict[str, float]  # asked for
    predicted_loss_increase: float | None  # ½ δᵀFδ; None where no Fisher was made
    seconds: float
    gradients: int = 0
    settings: dict = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(mask.numel() for mask in self.masks.values())

    @property
    def zeros(self) -> int:
        return self.total - sum(int(mask.sum()) for mask in self.masks.values())

    @property
    def achieved(self) -> float:
        return self.zeros / self.total

    def manifest(self) -> dict:
        """What a saved model says of how it was made."""
        return {
            "method": self.method,
            "options": self.options,
            "allocation": self.allocation,
            "sparsity": self.sparsity,
            "achieved": self.achieved,
            "predicted_loss_increase": self.predicted_loss_increase,
            "gradients": self.gradients,
            "seconds": self.seconds,
            **self.settings,
        }


def prune_(
    model: nn.Module,
    batches: Iterable | None = None,
    method: str | Solver = "cap",
    sparsity: float | Mapping[str, float] = 0.5,
    *,
    layers: str | list[str] | None = None,
    allocation: str = "global",
    loss: Loss | None = None,
    samples_per_gradient: int = 1,
    recomputations: int = 1,
    masks: Masks | None = None,
    recalibrate: bool = True,
    track: Track = silent,
) -> PruneResult:
    """Prune the chosen weights of any model in place; zeros that are there stay.

    Args:
        batches: (images, labels) pairs, or mappings of the model's keyword arguments with "labels". A method without
            curvature needs none.
        method: "cap", "woodfisher", "magnitude", or a solver with options such as `CAP(block=128, damping=1e-3)`.
        sparsity: the fraction of the chosen weights that end as zeros, or a table {layer pattern: fraction}.
        layers: patterns of weight names; see `select_layers`. By default all but the stem, depthwise and classifier.
        allocation: "global" (one threshold for all layers) or "uniform" (the same sparsity in each).
        loss: of (outputs, targets); cross-entropy by default, or the model's own where batches are mappings.
        samples_per_gradient: consecutive samples averaged into one gradient of the Fisher.
        recomputations: how many times the Fisher is made on the way to the target.
        masks: what earlier pruning kept; by default the weights that are not zero.
        recalibrate: measure batch normalisation's statistics again afterwards, where there is any and data to do it.
        track: shows progress; see `secateur.progress`.
    Raises:
        InputError: when an argument cannot be used; the model is then as it was.
        NumericsError: when a weight, a loss or a gradient is not finite.
    """
    start = time.perf_counter()
    solver, weights = solver_named(method), select_layers(model, layers)
    check_finite(weights)
    keep = starting_masks(weights, masks)
    groups = groups_for({n: w.size for n, w in weights.items()}, sparsity, allocation)
    check_groups(groups, keep)
    batches = _repeatable(batches, solver, recomputations, recalibrate and bool(batch_norms(model)))

    predicted, curvature = 0.0, None
    for stage in staged(groups, keep, recomputations):
        if solver.block is not None and batches is not None:
            curvature = collect(
                model, batches, weights, [solver.block],
                loss=loss, samples_per_gradient=samples_per_gradient, track=track,
            )[solver.block]  # fmt: skip
        scores = score(weights, keep, solver, curvature, track)
        kept = allocate(scores, stage)
        moved = compensated(weights, keep, kept, solver, curvature, track)
        predicted += predicted_increase(weights, moved, curvature) if curvature else 0.0
        write_(weights, moved)
        keep = kept
    if recalibrate and batches is not None:
        recalibrate_(model, batches, track)

    return PruneResult(
        masks={n: weights[n].from_matrix(k) for n, k in keep.items()},
        method=solver.name,
        options=asdict(solver),
        allocation="table" if isinstance(sparsity, Mapping) else allocation,
        sparsity=dict(sparsity) if isinstance(sparsity, Mapping) else sparsity,
        predicted_loss_increase=predicted if curvature else None,
        seconds=time.perf_counter() - start,
        gradients=curvature.gradients if curvature else 0,
        settings={"samples_per_gradient": samples_per_gradient, "recomputations": recomputations},
    )


# --- the steps; masks, scores and moved weights are matrices (out, in) ------------------------------------------------

Weights = Mapping[str, PrunableWeight]


def score(weights: Weights, keep: Masks, solver: Solver, curvature: Curvature | None, track: Track = silent) -> Masks:
    """A score for every weight; the smallest leaves first."""
    damping = damping_of(solver, curvature)
    scores = {}
    for name, weight in track(weights.items(), f"{solver.name} scores", len(weights)):
        matrix = weight.matrix().to(weight.precision)
        size, fisher = _block(weight, solver, curvature)
        values, kept = (to_blocks(m.reshape(-1), size) for m in (matrix, keep[name]))
        scored = solver.scores(values, kept, fisher, damping)
        scores[name] = from_blocks(scored, weight.size).view(keep[name].shape)
    return scores


def compensated(
    weights: Weights, before: Masks, keep: Masks, solver: Solver, curvature: Curvature | None, track: Track = silent
) -> dict[str, Tensor]:
    """The weights once only `keep` remain; a layer that loses nothing stays to the bit."""
    damping = damping_of(solver, curvature)
    moved = {}
    for name, weight in track(weights.items(), f"{solver.name} weights", len(weights)):
        matrix = weight.matrix().to(weight.precision)
        if torch.equal(before[name], keep[name]):
            moved[name] = matrix * keep[name]
            continue
        size, fisher = _block(weight, solver, curvature)
        values, was, kept = (to_blocks(m.reshape(-1), size) for m in (matrix, before[name], keep[name]))
        solved = solver.compensate(values, was, kept, fisher, damping)
        moved[name] = from_blocks(solved, weight.size).view(matrix.shape)
        if not torch.isfinite(moved[name]).all():
            raise NumericsError(f"{solver.name} gave {name} a weight that is not finite; try a larger damping.")
    return moved


def predicted_increase(weights: Weights, moved: Mapping[str, Tensor], curvature: Curvature) -> float:
    """½ δᵀFδ of the whole model, without the damping: how much the Fisher expects the loss to rise."""
    total = 0.0
    for name, weight in weights.items():
        change = to_blocks((moved[name] - weight.matrix()).reshape(-1), curvature.fishers[name].size)
        total += float(loss_increase(change, curvature[name]).sum(dtype=torch.float64))
    return total


@torch.no_grad()
def write_(weights: Weights, matrices: Mapping[str, Tensor]) -> None:
    """Put the matrices in the place of the model's weights."""
    for name, weight in weights.items():
        weight.parameter.copy_(weight.from_matrix(matrices[name]))


def damping_of(solver: Solver, curvature: Curvature | None) -> float:
    """λ in the Fisher's own units."""
    if curvature is None:
        return 0.0
    return solver.damping * (curvature.mean_diagonal if solver.relative else 1.0)


def _block(weight: PrunableWeight, solver: Solver, curvature: Curvature | None) -> tuple[int, Tensor]:
    """How many weights the solver sees together, and their Fisher: nothing, for a method without."""
    if curvature is None or solver.block is None:
        return weight.size, torch.empty(0)
    return curvature.fishers[weight.name].size, curvature[weight.name]


# --- what is checked before the work ---------------------------------------------------------------------------------


def check_finite(weights: Weights) -> None:
    """Raise NumericsError when a weight is NaN or infinite."""
    for name, weight in weights.items():
        bad = int((~torch.isfinite(weight.parameter)).sum())
        if bad:
            raise NumericsError(
                f"{name} holds {bad} weights of {weight.size} that are NaN or infinite; load the model again, or"
                " train it with a smaller learning rate."
            )


def starting_masks(weights: Weights, masks: Masks | None) -> Masks:
    """As matrices, where pruning starts: the masks given, or the weights that are not zero."""
    if masks is None:
        return {name: weight.matrix() != 0 for name, weight in weights.items()}
    started = {}
    for name, weight in weights.items():
        mask = masks.get(name, torch.ones_like(weight.parameter, dtype=torch.bool))
        if mask.shape != weight.parameter.shape or mask.dtype != torch.bool:
            raise InputError(
                f"The mask of {name} is {mask.dtype} of shape {tuple(mask.shape)}; it must be torch.bool of shape"
                f" {tuple(weight.parameter.shape)}."
            )
        started[name] = weight.matrix(mask.to(weight.parameter.device))
    return started


def check_groups(groups, keep: Masks) -> None:
    """Raise InputError, before any work, when more zeros are there than asked for."""
    allocate({name: torch.where(mask, 0.0, -torch.inf) for name, mask in keep.items()}, groups)


def _repeatable(batches: Iterable | None, solver: Solver, recomputations: int, recalibrate: bool) -> Iterable | None:
    """The batches, so that they can be gone through as often as it takes."""
    if not isinstance(recomputations, int) or recomputations < 1:
        raise InputError(f"recomputations is {recomputations!r}; give a whole number from 1.")
    if batches is None:
        if solver.block is not None:
            raise InputError(f"{solver.name} needs batches of images and labels to make its Fisher from; none given.")
        return None
    once = iter(batches) is batches
    return list(batches) if once and (recomputations > 1 or recalibrate) else batches
