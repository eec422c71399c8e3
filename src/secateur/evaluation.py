"""Top-1, top-5 and mean loss of a classifier over batches of (images, labels)."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import Loss, batch_inputs, to_device
from .errors import InputError, NumericsError
from .progress import Track, length, silent


@dataclass(frozen=True)
class Evaluation:
    """Accuracies in per cent, the mean loss, and over how many images and seconds."""

    top1: float
    top5: float
    loss: float
    images: int
    seconds: float

    @property
    def standard_error(self) -> float:
        """Of top-1, in points: what another draw of as many images would change it by."""
        return math.sqrt(self.top1 * (100 - self.top1) / self.images)


def evaluate(model: nn.Module, batches: Iterable, loss: Loss | None = None, track: Track = silent) -> Evaluation:
    """Measure the model in evaluation mode on its own device; its training modes are given back.

    Args:
        loss: from (outputs, targets) to the mean or one value a sample; cross-entropy by default.
        track: progress, wrapped around the batches.
    Raises:
        InputError: no batch at all, or labels that are not the model's classes.
        NumericsError: outputs that are NaN or infinite.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    modes = {module: module.training for module in model.modules()}
    start, images = time.perf_counter(), 0
    sums = torch.zeros(3, dtype=torch.float64)  # top-1 hits, top-5 hits, loss
    model.eval()
    try:
        with torch.inference_mode():
            for number, batch in enumerate(track(batches, "evaluation", length(batches))):
                measured = _measure(model, to_device(batch, device), loss, number)
                sums += measured.cpu()
                images += len(_labels(batch))
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not images:
        raise InputError("There is no batch to evaluate on; give at least one image.")
    top1, top5, total = (sums / images).tolist()
    return Evaluation(100 * top1, 100 * top5, total, images, time.perf_counter() - start)


def _measure(model: nn.Module, batch, loss: Loss | None, number: int) -> Tensor:
    """Top-1 hits, top-5 hits and the summed loss of one batch, in float64."""
    arguments, keywords = batch_inputs(batch)
    labels = _labels(batch)
    outputs = model(*arguments, **keywords)
    logits = getattr(outputs, "logits", outputs)
    if not torch.isfinite(logits).all():
        raise NumericsError(f"The model's outputs for batch {number} are NaN or infinite; look at weights and images.")
    if not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
        raise InputError(
            f"Labels of batch {number} run from {int(labels.min())} to {int(labels.max())}, but the model has"
            f" {logits.shape[1]} classes; give the data of these classes, or a class map."
        )
    hits = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]  # (images, 5)
    if loss is None:
        total = F.cross_entropy(logits.float(), labels, reduction="sum")
    else:
        value = loss(outputs, labels)
        total = value * len(labels) if value.dim() == 0 else value.sum()
    return torch.stack([hits[:, 0].sum().double(), hits.any(1).sum().double(), total.double()])


def _labels(batch) -> Tensor:
    return batch["labels"] if isinstance(batch, dict) else batch[1]
