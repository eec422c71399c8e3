"""Top-1, top-5 and mean loss of a classifier over batches of (images, labels)."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import Loss, batch_inputs, batch_targets, check_labels, to_device
from .errors import InputError, NumericsError
from .modes import evaluating
from .progress import Track, length, silent


@dataclass(frozen=True)
class Evaluation:
    """Accuracies in per cent, the mean loss, and over how many images and seconds."""

    # field → what it is called, the main one first; and those that stand beside every run
    METRICS: ClassVar[dict[str, str]] = {"top1": "top-1", "top5": "top-5"}
    IN_TABLES: ClassVar[tuple[str, ...]] = ("top1",)

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

    >>> from secateur import evaluation_batches, load_model
    >>> model = load_model("bundled")
    >>> evaluate(model, evaluation_batches("bundled", model, limit=100)).images
    100
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    start, images = time.perf_counter(), 0
    sums = torch.zeros(3, dtype=torch.float64)  # top-1 hits, top-5 hits, loss
    with evaluating(model), torch.inference_mode():
        for number, batch in enumerate(track(batches, "evaluation", length(batches))):
            sums += _measure(model, to_device(batch, device), loss, number).cpu()
            images += len(batch_targets(batch))
    if not images:
        raise InputError("There is no batch to evaluate on; give at least one image.")
    top1, top5, total = (sums / images).tolist()
    return Evaluation(100 * top1, 100 * top5, total, images, time.perf_counter() - start)


def _measure(model: nn.Module, batch, loss: Loss | None, number: int) -> Tensor:
    """Top-1 hits, top-5 hits and the summed loss of one batch, in float64."""
    arguments, keywords = batch_inputs(batch)
    labels = batch_targets(batch)
    outputs = model(*arguments, **keywords)
    logits = getattr(outputs, "logits", outputs)
    if not torch.isfinite(logits).all():
        raise NumericsError(f"The model's outputs for batch {number} are NaN or infinite; look at weights and images.")
    check_labels(labels, logits.shape[1], number)
    hits = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]  # (images, 5)
    if loss is None:
        total = F.cross_entropy(logits.float(), labels, reduction="sum")
    else:
        value = loss(outputs, labels)
        total = value * len(labels) if value.dim() == 0 else value.sum()
    return torch.stack([hits[:, 0].sum().double(), hits.any(1).sum().double(), total.double()])
