"""A pruning step inside a training: any method of the library, on gradients under the training augmentation.

The Fisher is made in evaluation mode of images that are augmented as in training and labels that are smoothed, but not
mixed with one another, so that each gradient is one image's. Under several processes each gives its part of the images,
and all end with the same masks and weights.
"""

import numpy as np
import torch
from torch import nn

from ..batchnorm import batch_norms
from ..comparison import contender
from ..distributed import Processes
from ..progress import Track, silent
from ..prune import PruneResult, prune_
from ..steps import Masks
from .checks import Target
from .feed import Feed
from .recipe import Recipe


def prune_step_(
    model: nn.Module,
    feed: Feed,
    recipe: Recipe,
    target: Target,
    step: int,
    masks: Masks,
    track: Track = silent,
) -> PruneResult:
    """Prune to exactly `target`, zeros that `masks` has staying zero; the images follow from the seed and the step."""
    gradual = recipe.gradual
    assert gradual is not None
    chosen = contender(gradual.method)
    needs_images = chosen.solver.statistic is not None or bool(batch_norms(model))
    seed = int(np.random.SeedSequence([recipe.seed, step, 1]).generate_state(1)[0])
    batches = feed.calibration(gradual.samples, seed) if needs_images else None
    result = prune_(
        model, batches, chosen.solver, target,  # type: ignore[arg-type]  # a pattern of N:M where the library has it
        layers=list(recipe.layers) or None,
        allocation=chosen.allocation,
        loss=recipe.augmentation.plain_loss(),
        samples_per_gradient=gradual.samples_per_gradient,
        recomputations=gradual.recomputations,
        masks=masks,
        track=track,
        processes=feed.processes,
    )  # fmt: skip
    make_same_(model, result.masks, feed.processes)
    return result


@torch.no_grad()
def make_same_(model: nn.Module, masks: Masks, processes: Processes) -> None:
    """Every process gets the first one's: sums and thresholds may differ in their last bits between machines."""
    for tensor in model.state_dict().values():
        processes.copy_(tensor)
    for mask in masks.values():
        processes.copy_(mask.view(torch.uint8))
