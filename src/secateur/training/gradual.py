"""A pruning step inside a training: any method of the library, on gradients under the training augmentation.

The Fisher is made in evaluation mode of images that are augmented as in training and labels that are smoothed, but not
mixed with one another, so that each gradient is one image's. Under several processes each gives its part of the images,
and all end with the same masks and weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..allocate import groups_for, left_out, patterns_of
from ..batchnorm import batch_norms
from ..comparison import contender, fitted
from ..distributed import Processes
from ..layers import select_layers
from ..manifest import MANIFEST, read_manifest
from ..patterns import NM, UNSTRUCTURED, read_pattern
from ..progress import Track, silent
from ..prune import PruneResult, prune_
from ..sparsity import read_sparsity
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
    chosen = fitted(contender(gradual.method), model)
    needs_images = chosen.solver.statistic is not None or bool(batch_norms(model))
    seed = int(np.random.SeedSequence([recipe.seed, step, 1]).generate_state(1)[0])
    batches = feed.calibration(gradual.samples, seed) if needs_images else None
    result = prune_(
        model, batches, chosen.solver, target,
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


@dataclass(frozen=True)
class Kept:
    """Masks as `save` takes them, with the pattern that each layer was pruned to."""

    masks: Masks
    patterns: Mapping[str, NM]
    left_out: Mapping[str, str]


def kept_at(model: nn.Module, recipe: Recipe, masks: Masks, target: Target | None) -> Kept:
    """What a model is written with after a pruning step to `target`; fine-tuning keeps the patterns it started with."""
    if recipe.gradual is None and recipe.acdc is None and recipe.rigl is None:
        return _kept_as_before(recipe, masks)
    if recipe.gradual is None or target is None:
        return Kept(masks, {}, {})
    weights = select_layers(model, list(recipe.layers) or None)
    keep = {name: weight.matrix(masks[name]) for name, weight in weights.items()}
    allocation = contender(recipe.gradual.method).allocation
    groups = groups_for(weights, keep, read_sparsity(target), allocation)
    return Kept(masks, patterns_of(groups), left_out(groups))


def _kept_as_before(recipe: Recipe, masks: Masks) -> Kept:
    """With what the manifest says of each layer, where the run starts from a folder that has one."""
    folder = Path(recipe.model.removeprefix("local-dir:"))
    if not recipe.pretrained or not (folder / MANIFEST).is_file():
        return Kept(masks, {}, {})
    rows = read_manifest(folder)["layers"]
    named = {row["name"]: row["pattern"] for row in rows if row.get("pattern", UNSTRUCTURED) != UNSTRUCTURED}
    reasons = {row["name"]: row["left_out"] for row in rows if row.get("left_out")}
    return Kept(masks, {name: read_pattern(text, f" of {name}") for name, text in named.items()}, reasons)


@torch.no_grad()
def make_same_(model: nn.Module, masks: Masks, processes: Processes) -> None:
    """Every process gets the first one's: sums and thresholds may differ in their last bits between machines."""
    for tensor in model.state_dict().values():
        processes.copy_(tensor)
    for mask in masks.values():
        processes.copy_(mask.view(torch.uint8))
