"""How long a run will take, from a few training steps of its model on images of noise."""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from ..models import input_shape
from .timeline import Timeline

LONG_ENOUGH = 0.5  # seconds of a trial
FORWARD = 1 / 3  # of a training step: what measuring takes


def seconds_per_image(model: nn.Module, most: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Of a forward and backward pass: more and more images at once, until a pass takes half a second or has `most`."""
    images, device = 1, next(model.parameters()).device
    model.train()
    while True:
        batch = torch.randn(images, *input_shape(model), device=device)
        start = clock()
        outputs = model(batch)
        outputs = getattr(outputs, "logits", outputs)  # transformers
        F.cross_entropy(outputs, outputs.detach().argmax(1)).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = clock() - start
        if seconds >= LONG_ENOUGH or images >= most:
            return seconds / images
        images = min(2 * images, most)


def estimated_seconds(timeline: Timeline, per_image: float, measured: int, processes: int = 1) -> float:
    """Of a run whose models are measured on so many images each time; without the solvers' own work."""
    recipe, gradual = timeline.recipe, timeline.recipe.gradual
    images = float(timeline.steps * recipe.batch_size)
    if gradual is not None:
        images += len(timeline.events) * gradual.samples * gradual.recomputations
    moments = sum(event.is_measured for event in timeline.events.values()) + recipe.epochs + 1
    return per_image * (images + FORWARD * moments * measured) / processes
