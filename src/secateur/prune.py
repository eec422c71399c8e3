"""Pruning is four steps: gradients → curvature → scores → compensated weights. `prune_` joins them; read it first."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from torch import nn

from .allocate import allocate, allocation_name, groups_for, left_out, patterns_of, staged
from .batches import Loss
from .batchnorm import batch_norms, enough, recalibrate_
from .curvature import collect
from .distributed import ALONE, Processes
from .errors import check_whole
from .layers import select_layers
from .patterns import NM
from .progress import Track, silent
from .resources import DEFAULT, Resources
from .settings import solver_for
from .solvers import Solver
from .sparsity import Sparsity, Wanted, plain, read_sparsity
from .steps import (
    Masks,
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
class PruneResult:
    """What a pruning did: the masks, and the numbers that describe it.

    >>> prune_(nn.Sequential(nn.Linear(8, 6)), None, "magnitude", sparsity=0.5, layers="0").achieved
    0.5
    """

    masks: Masks
    solver: Solver
    allocation: str  # "table" where the sparsity is one
    sparsity: Wanted  # asked for
    predicted_loss_increase: float | None  # ½ δᵀFδ; None where there is no F
    seconds: float
    gradients: int = 0
    samples_per_gradient: int = 1
    recomputations: int = 1
    patterns: Mapping[str, NM] = field(default_factory=dict)  # of the layers that end in one
    left_out: Mapping[str, str] = field(default_factory=dict)  # layers that cannot take the pattern asked for, and why

    @property
    def method(self) -> str:
        return self.solver.name

    @property
    def options(self) -> dict:
        return asdict(self.solver)

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
            "sparsity": plain(self.sparsity),
            "achieved": self.achieved,
            "predicted_loss_increase": self.predicted_loss_increase,
            "gradients": self.gradients,
            "samples_per_gradient": self.samples_per_gradient,
            "recomputations": self.recomputations,
            "seconds": self.seconds,
        }


def prune_(
    model: nn.Module,
    batches: Iterable | None = None,
    method: str | Solver = "cap",
    sparsity: Sparsity = 0.5,
    *,
    layers: str | list[str] | None = None,
    allocation: str = "global",
    loss: Loss | None = None,
    samples_per_gradient: int = 1,
    recomputations: int = 1,
    masks: Masks | None = None,
    recalibrate: bool = True,
    resources: Resources = DEFAULT,
    track: Track = silent,
    processes: Processes = ALONE,
) -> PruneResult:
    """Prune the chosen weights of any model in place; zeros that are there stay.

    Args:
        batches: (images, labels) pairs, or mappings of the model's keyword arguments with "labels". A method without
            curvature needs none.
        method: one of `secateur.solvers.METHODS`, such as "cap", with the options of the model's family (see
            `solver_for`); or a solver with options such as `CAP(block=128, damping=1e-3)`, taken as it is.
        sparsity: the fraction of the chosen weights that end as zeros; or any N:M, such as "2:4", of whose M
            neighbouring input channels at most N are not zero; or a table {layer pattern: fraction or N:M}. Layers
            that cannot take N:M stay as they are, and `left_out` of the result says why.
        layers: patterns of weight names; see `select_layers`. By default all but what the model's family keeps dense.
        allocation: "global" (one threshold for all layers) or "uniform" (the same sparsity in each).
        loss: of (outputs, targets); cross-entropy by default, or the model's own where batches are mappings.
        samples_per_gradient: consecutive samples averaged into one gradient of the Fisher.
        recomputations: how many times the Fisher is made on the way to the target.
        masks: what earlier pruning kept; by default the weights that are not zero.
        recalibrate: measure batch normalisation's statistics again, where there is any, on the first 512 samples.
        resources: memory, disk and precision for making the Fisher; see `Resources`.
        track: shows progress; see `secateur.progress`.
        processes: of a training on several: each gives its part of the batches, and all prune alike.
    Raises:
        InputError: when an argument cannot be used; the model is then as it was.
        NumericsError: when a weight, a loss or a gradient is not finite.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,)))]
    >>> result = prune_(model, batches, "cap", sparsity=0.75, layers="0")
    >>> result.zeros, int((model[0].weight == 0).sum())
    (36, 36)
    """
    start = time.perf_counter()
    solver, weights, wanted = solver_for(model, method), select_layers(model, layers), read_sparsity(sparsity)
    keep = starting_masks(weights, masks)
    groups = groups_for(weights, keep, wanted, allocation)
    patterns = patterns_of(groups)
    check_start(weights, keep, groups)
    check_blocks(weights, solver, patterns)
    check_whole(samples_per_gradient=samples_per_gradient, recomputations=recomputations)
    recalibrate = recalibrate and batches is not None and bool(batch_norms(model))
    batches = repeatable(batches, [solver], passes=recomputations + recalibrate)

    predicted = 0.0
    for stage in staged(groups, keep, recomputations):
        curvature = None  # before the next is made: there may be room for one Fisher only
        if solver.statistic is not None:
            curvature = collect(
                model, batches, weights, [solver.statistic],
                loss=loss, samples_per_gradient=samples_per_gradient, resources=resources, track=track,
                processes=processes,
            )[solver.statistic]  # fmt: skip
        scores = score(weights, keep, solver, curvature, patterns, track)
        kept = allocate(scores, stage)
        moved = compensated(weights, keep, kept, solver, curvature, track)
        predicted += predicted_increase(weights, moved, curvature) if curvature and curvature.predicts else 0.0
        write_(weights, moved)
        keep = kept
        if recalibrate and moved:  # before the next Fisher, which sees its statistics
            recalibrate_(model, enough(batches), track)

    return PruneResult(
        masks=in_own_shapes(weights, keep),
        solver=solver,
        allocation=allocation_name(wanted, allocation),
        sparsity=wanted,
        predicted_loss_increase=predicted if curvature and curvature.predicts else None,
        seconds=time.perf_counter() - start,
        gradients=curvature.gradients if curvature else 0,
        samples_per_gradient=samples_per_gradient,
        recomputations=recomputations,
        patterns=patterns,
        left_out=left_out(groups),
    )
