"""Batch normalisation's running statistics, measured again: pruned weights shift what they were measured on."""

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from .batches import batch_inputs, samples_in, to_device
from .modes import evaluating
from .progress import Track, length, silent

SAMPLES = 512  # more change top-1 by less than its noise


def batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The model's batch normalisations that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None]


@torch.no_grad()
def recalibrate_(model: nn.Module, batches: Iterable, track: Track = silent) -> None:
    """Replace the running statistics by their average over the samples; all else stays in evaluation mode.

    Without a batch, or after a failure, the statistics are what they were.
    """
    norms = batch_norms(model)
    if not norms:
        return
    before = [(norm, norm.momentum, {k: v.clone() for k, v in norm.named_buffers(recurse=False)}) for norm in norms]
    try:
        with evaluating(model):
            for norm in norms:
                norm.training = True  # not train(): that would reach the modules inside it
            _average(model, norms, track(batches, "batch norm", length(batches)))
    except BaseException:
        for norm, _, statistics in before:
            norm.load_state_dict(statistics, strict=False)
        raise
    finally:
        for norm, momentum, _ in before:
            norm.momentum = momentum


def enough(batches: Iterable) -> Iterator:
    """The first of the batches, until they hold `SAMPLES` samples: what the statistics are measured on."""
    seen = 0
    for batch in batches:
        yield batch
        seen += samples_in(batch)
        if seen >= SAMPLES:
            return


def _average(model: nn.Module, norms: list[nn.modules.batchnorm._BatchNorm], batches: Iterable) -> None:
    device, seen = next(model.parameters()).device, 0
    for batch in batches:
        samples = samples_in(batch)
        if samples == 1 and seen:
            continue  # a last batch of one sample: it may hold one value a channel, which has no variance
        seen += samples
        for norm in norms:
            norm.momentum = samples / seen  # the first batch replaces what was there
        arguments, keywords = batch_inputs(to_device(batch, device))
        model(*arguments, **keywords)
