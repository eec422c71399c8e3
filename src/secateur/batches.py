"""What a batch may look like, and the loss of one.

A batch is (inputs, targets, …), or a mapping of the model's keyword arguments with "labels". Targets that differ in
size from sample to sample, such as the boxes of images, are a list of mappings, one a sample.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import InputError, NumericsError
from .set_loss import losses_by_image

Loss = Callable[[Any, Any], Tensor]  # (outputs, targets) -> the mean over the batch, or one value a sample

EXACT: AbstractContextManager = nullcontext()  # the model's own precision


def summed_loss(model: nn.Module, batch, loss: Loss | None, number: int, cast=EXACT) -> Tensor:
    """The loss of batch `number`, summed over its samples, so that each sample's gradient is its own.

    `cast` is the context of the forward pass: an autocast, or none.
    """
    with torch.enable_grad(), cast:
        value = _loss(model, batch, loss, number)
        if not isinstance(value, Tensor):
            raise InputError(f"The loss of batch {number} is a {type(value).__name__}; it must be a tensor.")
        total = value * samples_in(batch) if value.dim() == 0 else value.sum()  # a scalar is taken as the mean
    if not torch.isfinite(total):
        raise NumericsError(
            f"The loss of batch {number} is {float(total.detach())}; look at that batch's images and labels, and at the"
            " model's weights."
        )
    return total


def _loss(model: nn.Module, batch, loss: Loss | None, number: int) -> Tensor:
    if isinstance(batch, Mapping) and loss is None:
        return _own_loss(model, batch)
    targets = batch_targets(batch)
    arguments, keywords = batch_inputs(batch)
    outputs = model(*arguments, **keywords)
    if loss is not None:
        return loss(outputs, targets)
    return _cross_entropy(getattr(outputs, "logits", outputs), targets, number)


def _own_loss(model: nn.Module, batch: Mapping) -> Tensor:
    """What the model says its loss is, for each sample alone where the targets are a list."""
    with losses_by_image(model):
        outputs = model(**batch)
    value = getattr(outputs, "loss", None)
    if value is None:
        raise InputError(
            f"The model gives a {type(outputs).__name__} without a loss for a batch of {', '.join(batch)};"
            " give a loss function of (outputs, targets)."
        )
    if _is_one_each(batch.get("labels")) and len(batch["labels"]) > 1 and isinstance(value, Tensor) and not value.dim():
        # a mean over all boxes of the batch, in which an image's share depends on the others
        return torch.stack([model(**cut(batch, i)).loss for i in range(len(batch["labels"]))])
    return value


def batch_targets(batch) -> Any:
    """The second half of a pair, or the "labels" of a mapping."""
    if isinstance(batch, Mapping) and "labels" in batch:
        return batch["labels"]
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return batch[1]
    raise InputError(
        f"A batch of type {type(batch).__name__} holds no targets; give (images, labels) pairs, or mappings with"
        ' "labels".'
    )


def batch_inputs(batch) -> tuple[tuple, dict]:
    """The positional and keyword arguments of the model: the batch without its targets."""
    if isinstance(batch, Mapping):
        return (), {k: v for k, v in batch.items() if k != "labels"}
    return ((batch,) if isinstance(batch, Tensor) else (batch[0],)), {}


def _cross_entropy(outputs: Tensor, targets: Tensor, number: int) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"The model gives a {type(outputs).__name__}, not logits; give a loss function of (outputs, targets)."
        )
    if not targets.is_floating_point():  # those are probabilities of classes
        check_labels(targets, outputs.shape[1], number)
    return F.cross_entropy(outputs, targets, reduction="none")


def check_labels(labels: Tensor, classes: int, number: int) -> None:
    """Raise InputError unless every label of batch `number` is the number of one of the model's classes."""
    lowest, highest = int(labels.min()), int(labels.max())
    if not 0 <= lowest <= highest < classes:
        raise InputError(
            f"Labels of batch {number} run from {lowest} to {highest}, but the model has {classes} classes; give the"
            " data of these classes, or a class map."
        )


def samples_in(batch) -> int:
    """How many samples a batch holds: the first axis of its first tensor, or the length of its list of targets."""
    if isinstance(batch, Tensor):
        return len(batch)
    values = batch.values() if isinstance(batch, Mapping) else batch
    for value in values if isinstance(values, Iterable) else ():
        if (isinstance(value, Tensor) and value.dim()) or _is_one_each(value):
            return len(value)
        if isinstance(value, Mapping | list | tuple) and len(value):
            return samples_in(value)
    raise InputError(f"A batch of type {type(batch).__name__} holds no tensor; give (images, labels) pairs.")


def cut(batch, index: int | slice):
    """One sample, or a run of them, as a batch of the same form."""
    part, samples = index if isinstance(index, slice) else slice(index, index + 1), samples_in(batch)
    if isinstance(batch, tuple | list):  # of inputs and targets, whatever their number
        return _rebuilt(batch, [_cut(value, part, samples) for value in batch])
    return _cut(batch, part, samples)


def _is_one_each(value) -> bool:
    """Whether it is a list of mappings, one a sample."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _cut(value, part: slice, samples: int):
    """What has one entry a sample is cut, the rest stays: a shared mask, a flag, a file name."""
    if isinstance(value, Tensor):
        return value[part] if value.dim() and len(value) == samples else value
    if isinstance(value, Mapping):
        return {k: _cut(v, part, samples) for k, v in value.items()}
    if _is_one_each(value) and len(value) == samples:
        return value[part]
    if isinstance(value, tuple | list):
        if any(isinstance(v, Tensor | Mapping | tuple | list) for v in value):
            return _rebuilt(value, [_cut(v, part, samples) for v in value])
        return value[part] if len(value) == samples else value
    return value


def to_device(batch, device: torch.device):
    """The batch with every tensor in it on `device`."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {k: to_device(v, device) for k, v in batch.items()}
    if isinstance(batch, tuple | list):
        return _rebuilt(batch, [to_device(v, device) for v in batch])
    return batch


def _rebuilt(like, values: list):
    """`values` as the tuple, named tuple or list that `like` is."""
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)
