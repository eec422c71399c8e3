"""The loss of a detector of transformers, image by image.

DETR (Carion et al., ECCV 2020) assigns its predictions to an image's boxes by the cheapest matching, and divides the
loss of a batch by the number of all its boxes, so that the share of an image depends on the images beside it. Here the
model's own function is called with the outputs of one image at a time, auxiliary outputs included: what each image's
loss would be if it came alone. Cost: one matching an image, as in the whole batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

SEPARABLE = "ForObjectDetection"  # transformers' name of the loss of DETR, Table Transformer and YOLOS


@contextmanager
def losses_by_image(model: nn.Module) -> Iterator[None]:
    """Within the body, such a detector gives one loss an image instead of one a batch; other models are as ever."""
    own: Any = getattr(model, "loss_function", None) if getattr(model, "loss_type", None) == SEPARABLE else None
    if own is None:
        yield
        return
    was_set = "_loss_function" in vars(model)
    setattr(model, "loss_function", partial(_losses, own))  # noqa: B010 (the property takes functions, types say not)
    try:
        yield
    finally:
        if was_set:
            setattr(model, "loss_function", own)  # noqa: B010
        else:
            del model._loss_function


def _losses(
    own: Callable,
    logits: Tensor,  # (images, queries, classes + 1)
    labels: Sequence[Mapping[str, Tensor]],
    device: torch.device,
    pred_boxes: Tensor,  # (images, queries, 4)
    config: Any,
    outputs_class: Tensor | None = None,  # (layers, images, queries, classes + 1)
    outputs_coord: Tensor | None = None,
) -> tuple[Tensor, dict, None]:
    """In place of `own`: (one loss an image, no parts of it, no auxiliary outputs)."""
    if not (torch.isfinite(logits).all() and torch.isfinite(pred_boxes).all()):
        return logits.new_full((len(labels),), torch.nan), {}, None  # the matching has no word for it
    kind = torch.get_default_dtype()  # that of the weights which `own` gives to classes; bfloat16 matches badly
    given = [None if t is None else t.to(kind) for t in (logits, pred_boxes, outputs_class, outputs_coord)]
    losses = []
    with torch.autocast(logits.device.type, enabled=False):
        for i, target in enumerate({**t, "boxes": t["boxes"].to(kind)} for t in labels):
            classes, boxes, *inner = (None if t is None else t[..., i : i + 1, :, :] for t in given)
            losses.append(own(classes, [target], device, boxes, config, *inner)[0])
    return torch.stack(losses), {}, None
