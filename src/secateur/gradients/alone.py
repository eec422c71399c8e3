"""Gradients of samples that run through the model alone: the slow truth, and the way out when hooks cannot tell the
samples of a batch apart. Cost: one forward and backward pass a sample.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..batches import EXACT, cut, samples_in, summed_loss
from ..layers import PrunableWeight
from .groups import Groups

AT_ONCE = 2**26  # gradient entries held together: 256 MiB in float32


def gradients_one_by_one(model, batch, weights, loss, groups: Groups, number: int, cast=EXACT) -> None:
    """Every sample alone through the model, its gradients by ordinary differentiation."""
    samples, together = samples_in(batch), max(1, AT_ONCE // sum(w.size for w in weights.values()))
    for first in range(0, samples, together):
        part = range(first, min(first + together, samples))
        each = [single_gradients(model, cut(batch, i), weights, loss, number, cast) for i in part]
        groups.start_batch(number, len(part))
        for name in weights:
            gradients = torch.stack([g.pop(name) for g in each])
            if groups.size > 1:
                gradients = torch.stack([gradients[s].sum(0) for s in groups.slices()])
            groups.take(name, gradients)
        groups.end_batch()


def single_gradients(
    model, batch, weights: Mapping[str, PrunableWeight], loss, number: int = 0, cast=EXACT
) -> dict[str, Tensor]:
    """{name: (out, in)}: the gradient of the batch's summed loss, by automatic differentiation."""
    parameters = [weight.parameter.requires_grad_() for weight in weights.values()]
    total = summed_loss(model, batch, loss, number, cast)
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    for parameter in parameters:
        parameter.requires_grad_(False)
    return {
        name: weight.matrix(torch.zeros_like(weight.parameter) if g is None else g)
        for (name, weight), g in zip(weights.items(), gradients, strict=True)
    }
