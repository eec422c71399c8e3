"""One forward and backward pass a batch, and each layer's gradients out of that layer's own backward hook: only one
layer's are in memory at a time.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from ..batches import EXACT, Loss, cut, samples_in, summed_loss, to_device
from ..errors import InputError, NumericsError, check_whole
from ..layers import PrunableWeight
from ..modes import evaluating
from ..progress import Track, length, silent
from ..resources import DEFAULT, Resources
from .alone import gradients_one_by_one, single_gradients
from .groups import Groups, Sink
from .rules import slice_gradients

log = logging.getLogger(__name__)
ALONE = "Hooks cannot tell the samples of a batch apart in %s: every sample runs alone, which takes longer."
ROUNDING = 1e-6  # of the largest gradient: what is left, after sums in float32, of one that should be zero


def stream_gradients(
    model: nn.Module,
    batches: Iterable,
    weights: Mapping[str, PrunableWeight],
    sink: Sink,
    *,
    loss: Loss | None = None,
    samples_per_gradient: int = 1,  # m
    resources: Resources = DEFAULT,
    track: Track = silent,
) -> int:
    """Hand the gradients of every batch to `sink`, and return how many there were.

    Args:
        batches: (inputs, targets) pairs, or mappings of keyword arguments with "labels".
        loss: of (outputs, targets), a scalar mean over the batch or one value a sample; cross-entropy by default, or
            the model's own `.loss` where batches are mappings.
        samples_per_gradient: consecutive samples averaged into one gradient; an incomplete last group is left out.
        resources: their precision is that of the forward and backward passes.
    Raises:
        NumericsError: when a loss or a gradient is not finite, with the batch and the layer.
        InputError: when there are fewer samples than one gradient takes.
    """
    check_whole(samples_per_gradient=samples_per_gradient)
    groups = Groups(sink, samples_per_gradient)
    with _as_for_inference(model):
        rule, device = None, next(model.parameters()).device
        for number, batch in enumerate(track(batches, "gradients", length(batches))):
            batch = to_device(batch, device)
            if rule is None and samples_in(batch) > 1:
                rule = choose_rule(model, batch, weights, loss, number)
            (rule or gradients_one_by_one)(model, batch, weights, loss, groups, number, resources.autocast(device))
    if groups.complete == 0:
        raise InputError(
            f"One gradient takes {samples_per_gradient} samples but the batches hold {groups.samples};"
            " give more samples or a smaller samples_per_gradient."
        )
    return groups.complete


def gradients_by_hooks(model, batch, weights, loss, groups: Groups, number: int, cast=EXACT) -> None:
    """All samples at once: every layer's inputs meet the gradients of its outputs in a hook."""
    groups.start_batch(number, samples_in(batch))
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

    with ExitStack() as hooks:  # gone before the backward pass, where a rule may call the module again
        for name, weight in weights.items():
            for module in weight.modules:
                handle = module.register_forward_hook(lambda m, a, o, n=name: after_forward(n, m, a, o))
                hooks.callback(handle.remove)
        total = summed_loss(model, batch, loss, number, cast)
    total.backward()
    for name in list(sums):  # a use that does not reach the loss never arrives
        groups.take(name, sums.pop(name))
    groups.end_batch()


def choose_rule(model, batch, weights, loss, number: int = 0):
    """Hooks, where they give two samples of this batch the gradients each has alone; else sample by sample.

    They do not where a weight is used without calling its module, or a layer's first axis does not lead with samples.
    """
    pair = _telling_pair(model, batch, loss, number)
    seen: dict[str, Tensor] = {}
    try:
        gradients_by_hooks(model, pair, weights, loss, Groups(seen.__setitem__, 1), number)
    except (RuntimeError, IndexError, TypeError, AttributeError) as error:
        if isinstance(error, NumericsError):
            raise
        log.info(ALONE, f"this {type(model).__name__} ({type(error).__name__})")
        return gradients_one_by_one
    alone = [single_gradients(model, cut(pair, index), weights, loss, number) for index in range(2)]
    truths = {name: torch.stack([gradients[name] for gradients in alone]) for name in weights}
    noise = ROUNDING * max(float(truth.norm()) for truth in truths.values()) + 1e-12
    odd = [name for name, truth in truths.items() if not _agree(seen.get(name), truth, noise)]
    if odd:
        log.info(ALONE, f"{odd[0]} and {len(odd) - 1} more" if odd[1:] else odd[0])
    return gradients_one_by_one if odd else gradients_by_hooks


def _agree(guess: Tensor | None, truth: Tensor, noise: float) -> bool:
    difference = truth if guess is None else guess - truth
    return bool(difference.norm() <= 0.02 * truth.norm() + noise)


def _telling_pair(model, batch, loss, number: int):
    """The two neighbours of the largest loss, among a few: a sample without loss has no gradient to compare."""
    firsts = range(0, min(samples_in(batch) - 1, 16), 2)
    return max(
        (cut(batch, slice(first, first + 2)) for first in firsts),
        key=lambda pair: float(summed_loss(model, pair, loss, number).detach()),
    )


@contextmanager
def _as_for_inference(model: nn.Module):
    """Evaluation mode and frozen parameters, put back as they were afterwards."""
    required = [(p, p.requires_grad) for p in model.parameters()]
    try:
        with evaluating(model), _batch_norms_right_for_one(model):
            model.requires_grad_(False)
            yield
    finally:
        for parameter, was_required in required:
            parameter.requires_grad_(was_required)


@contextmanager
def _batch_norms_right_for_one(model: nn.Module):
    """Batch normalisation with the gradients of a single sample in the order of its memory.

    On a processor torch 2.15 gets its backward pass wrong where a single sample's come as tokens, channels last.
    """

    def ordered(gradient: Tensor) -> Tensor:
        return gradient.contiguous() if len(gradient) == 1 else gradient

    def after_forward(module: nn.Module, args: tuple, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(ordered)

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                hooks.callback(module.register_forward_hook(after_forward).remove)
        yield
