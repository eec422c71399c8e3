"""One forward and backward pass a batch, and each layer's gradients out of that layer's own backward hook: only one
layer's are in memory at a time.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from ..batches import Loss, cut, samples_in, summed_loss, to_device
from ..errors import InputError, NumericsError
from ..layers import PrunableWeight
from ..progress import Track, length, silent
from .alone import gradients_one_by_one, single_gradients
from .groups import Groups, Sink
from .rules import slice_gradients


def stream_gradients(
    model: nn.Module,
    batches: Iterable,
    weights: Mapping[str, PrunableWeight],
    sink: Sink,
    *,
    loss: Loss | None = None,
    samples_per_gradient: int = 1,  # m
    track: Track = silent,
) -> int:
    """Hand the gradients of every batch to `sink`, and return how many there were.

    Args:
        batches: (inputs, targets) pairs, or mappings of keyword arguments with "labels".
        loss: of (outputs, targets), a scalar mean over the batch or one value a sample; cross-entropy by default, or
            the model's own `.loss` where batches are mappings.
        samples_per_gradient: consecutive samples averaged into one gradient; an incomplete last group is left out.
    Raises:
        NumericsError: when a loss or a gradient is not finite, with the batch and the layer.
        InputError: when there are fewer samples than one gradient takes.
    """
    groups = Groups(sink, samples_per_gradient)
    with _as_for_inference(model):
        rule = None
        for number, batch in enumerate(track(batches, "gradients", length(batches))):
            batch = to_device(batch, _device(model))
            rule = rule or choose_rule(model, batch, weights, loss)
            groups.start_batch(number, samples_in(batch))
            rule(model, batch, weights, loss, groups)
            groups.end_batch()
    if groups.complete == 0:
        raise InputError(
            f"One gradient takes {samples_per_gradient} samples but the batches hold {groups.samples};"
            " give more samples or a smaller samples_per_gradient."
        )
    return groups.complete


def gradients_by_hooks(model, batch, weights, loss, groups: Groups) -> None:
    """All samples at once: every layer's inputs meet the gradients of its outputs in a hook."""
    waiting: dict[str, int] = dict.fromkeys(weights, 0)  # uses of the weight whose gradient has not arrived
    sums: dict[str, Tensor] = {}

    def arrived(name: str, module: nn.Module, inputs: Tensor, gradient: Tensor) -> None:
        part = slice_gradients(module, inputs, gradient, groups.batch_samples, groups.size, groups.slices())
        sums[name] = sums[name] + part if name in sums else part
        waiting[name] -= 1
        if waiting[name] == 0:
            groups.take(name, sums.pop(name))

    def after_forward(name: str, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        if not output.requires_grad:  # nothing before this layer asked for gradients: the graph starts here
            output = output.detach().requires_grad_().clone()
        inputs = [args[0].detach()]  # popped on arrival: the graph would keep it to the end of the pass
        waiting[name] += 1
        output.register_hook(lambda gradient: arrived(name, module, inputs.pop(), gradient))
        return output

    with ExitStack() as hooks:
        for name, weight in weights.items():
            for module in weight.modules:
                handle = module.register_forward_hook(lambda m, a, o, n=name: after_forward(n, m, a, o))
                hooks.callback(handle.remove)
        summed_loss(model, batch, loss, groups.batch).backward()
    for name in list(sums):  # a use that does not reach the loss never arrives
        groups.take(name, sums.pop(name))


def choose_rule(model, batch, weights, loss):
    """Hooks, where they give two samples of this batch the gradients each has alone; else sample by sample.

    They do not where a weight is used without calling its module, or a layer's first axis does not lead with samples.
    """
    try:
        pair = cut(batch, slice(0, min(2, samples_in(batch))))
        count = samples_in(pair)
        if count != min(2, samples_in(batch)):
            return gradients_by_hooks
    except TypeError:  # a batch that cannot be cut: nothing to compare with
        return gradients_by_hooks
    seen: dict[str, Tensor] = {}
    groups = Groups(seen.__setitem__, 1)
    groups.start_batch(0, count)
    try:
        gradients_by_hooks(model, pair, weights, loss, groups)
    except (RuntimeError, IndexError, TypeError, AttributeError) as error:
        if isinstance(error, NumericsError):
            raise
        return gradients_one_by_one
    for index in range(count):
        for name, truth in single_gradients(model, cut(pair, index), weights, loss).items():
            guess = seen[name][index] if name in seen else torch.zeros_like(truth)
            if (guess - truth).norm() > 0.02 * truth.norm() + 1e-12:
                return gradients_one_by_one
    return gradients_by_hooks


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@contextmanager
def _as_for_inference(model: nn.Module):
    """Evaluation mode and frozen parameters, put back as they were afterwards."""
    modes = [(m, m.training) for m in model.modules()]
    frozen = [(p, p.requires_grad) for p in model.parameters()]
    try:
        model.eval()
        model.requires_grad_(False)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, required in frozen:
            parameter.requires_grad_(required)
