"""How well a detector finds objects: COCO's average precisions of its boxes, and its own loss."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ..batches import cut, samples_in, to_device
from ..errors import InputError, NumericsError, require
from ..modes import evaluating
from ..progress import Track, length, silent
from ..set_loss import losses_by_image
from .images import image_processor
from .precision import Boxes, average_precisions


@dataclass(frozen=True)
class DetectionEvaluation:
    """Average precisions in per cent (None where no object is of that size), the mean loss, over how many images."""

    METRICS: ClassVar[dict[str, str]] = {
        "ap": "AP", "ap50": "AP50", "ap75": "AP75",
        "ap_small": "AP small", "ap_medium": "AP medium", "ap_large": "AP large",
    }  # fmt: skip
    IN_TABLES: ClassVar[tuple[str, ...]] = ("ap", "ap50", "ap75")

    ap: float
    ap50: float
    ap75: float
    ap_small: float | None  # objects of up to 32² pixels
    ap_medium: float | None  # up to 96²
    ap_large: float | None
    loss: float
    images: int
    seconds: float


def evaluate(model: nn.Module, batches: Iterable, track: Track = silent) -> DetectionEvaluation:
    """Measure a detector in evaluation mode on its own device; its training modes are given back.

    Args:
        batches: those of `evaluation_batches`, or mappings like theirs.
        track: progress, wrapped around the batches.
    Raises:
        InputError: no batch at all, no object in any image, or no evaluator installed.
        NumericsError: outputs that are NaN or infinite.
    """
    require({"faster_coco_eval": "faster-coco-eval"}, "detection", "Average precision")
    read = image_processor(model).post_process_object_detection
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    start, losses, truths, found = time.perf_counter(), 0.0, list[Boxes](), list[Boxes]()
    with evaluating(model), torch.inference_mode(), losses_by_image(model):
        for number, batch in enumerate(track(batches, "evaluation", length(batches))):
            loss, boxes = _measure(model, to_device(batch, device), read, number)
            losses, found = losses + loss, found + boxes
            truths += [target["truth"] for target in batch["labels"]]
    if not truths:
        raise InputError("There is no batch to evaluate on; give at least one image.")
    figures: dict[str, Any] = average_precisions(truths, found)
    return DetectionEvaluation(
        **figures, loss=losses / len(truths), images=len(truths), seconds=time.perf_counter() - start
    )


def _measure(model: nn.Module, batch: Mapping, read: Callable, number: int) -> tuple[float, list[Boxes]]:
    """The summed loss of one batch, and the boxes found in each of its images."""
    outputs = model(**batch)
    if not (torch.isfinite(outputs.logits).all() and torch.isfinite(outputs.pred_boxes).all()):
        raise NumericsError(f"The model's outputs for batch {number} are NaN or infinite; look at weights and images.")
    images = samples_in(batch)
    if images > 1 and not outputs.loss.dim():  # of all their boxes together: each image is asked alone
        parts = [_measure(model, cut(batch, i), read, number) for i in range(images)]
        return sum(loss for loss, _ in parts), [boxes for _, found in parts for boxes in found]
    sizes = torch.stack([target["orig_size"] for target in batch["labels"]])
    return float(outputs.loss.sum()), read(outputs, threshold=0.0, target_sizes=sizes)
