"""Batch normalisation's running statistics, measured again: pruned weights shift what they were measured on."""

from collections.abc import Iterable

import torch
from torch import nn

from .batches import batch_inputs, to_device
from .progress import Track, length, silent


def batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The model's batch normalisations that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None]


@torch.no_grad()
def recalibrate_(model: nn.Module, batches: Iterable, track: Track = silent) -> None:
    """Replace the running statistics by their plain average over the batches; all else stays in evaluation mode."""
    norms = batch_norms(model)
    if not norms:
        return
    device = next(model.parameters()).device
    modes = [(m, m.training) for m in model.modules()]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the cumulative average
            norm.train()
        for batch in track(batches, "batch norm", length(batches)):
            arguments, keywords = batch_inputs(to_device(batch, device))
            model(*arguments, **keywords)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
