"""Batches of images with their boxes, as a detector of transformers takes them, the same on every pass.

A batch is {"pixel_values", "pixel_mask", "labels"}: images of different sizes, filled up with zeros to the right and
below, a mask that is 1 where there is image, and for each image what `labels.target_of` says.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data import Batches, DataSource
from ..data.choice import drawn
from ..data.prepare import Problem
from ..data.source import as_source
from ..errors import InputError, check_whole
from .coco import CocoImages, Picture, open_coco
from .images import header_problem, image_processor, ready_image, sizes_of
from .labels import Target, label_numbers, target_of


class DetectionBatches(Batches):
    """Batches of chosen images of an index, read by the calling process."""

    def __init__(self, source: DataSource, images: CocoImages, chosen: np.ndarray, model: nn.Module, batch_size: int):
        super().__init__(source, batch_size)
        self.pictures = [images.pictures[i] for i in chosen]
        self.processor = image_processor(model)
        self.sizes = sizes_of(self.processor, source.image_size)
        self.labels = label_numbers(images, model)
        self.with_mask = "pixel_mask" in inspect.signature(model.forward).parameters

    @property
    def samples(self) -> int:
        return len(self.pictures)

    def check_readable(self) -> int:
        problems = {picture.number: header_problem(picture) for picture in self.pictures}
        for problem in problems.values():
            if problem is not None:
                self._meet(problem)
        self.pictures = [picture for picture in self.pictures if problems[picture.number] is None]
        if not self.samples:
            raise InputError(f"None of the images of {self.source} could be read.")
        return self.samples

    def _collated(self) -> Iterator[tuple[dict | None, list[Problem]]]:
        for first in range(0, self.samples, self.batch_size):
            items = [self._item(picture) for picture in self.pictures[first : first + self.batch_size]]
            pairs = [item for item in items if not isinstance(item, Problem)]
            problems = [item for item in items if isinstance(item, Problem)]
            yield (padded(pairs, self.with_mask) if pairs else None), problems

    def _item(self, picture: Picture) -> tuple[Tensor, Target] | Problem:
        image = ready_image(picture, self.processor, self.sizes)
        return image if isinstance(image, Problem) else (image, target_of(picture, self.labels))


def calibration_batches(
    source: DataSource | str | Path, model: nn.Module, samples: int = 4096, seed: int = 0, batch_size: int = 4
) -> DetectionBatches:
    """Images with boxes for the gradients of `model`, drawn without replacement, not augmented.

    Args:
        source: a folder in COCO's format (see coco.py); of a DataSource the split, the image size (of the shorter
            side) and whether to skip unreadable images count as well.
        samples: how many; no image is taken twice.
    Raises:
        InputError: nothing to read, an index with mistakes, or categories that are not the model's labels.
    """
    check_whole(samples=samples, batch_size=batch_size)
    check_whole(least=0, seed=seed)
    source = _folder(source)
    images = open_coco(source.data_dir or "", source.split or "train")
    count = len(images.pictures)
    return DetectionBatches(source, images, drawn(count, min(samples, count), seed), model, batch_size)


def evaluation_batches(
    source: DataSource | str | Path, model: nn.Module, limit: int | None = None, seed: int = 0, batch_size: int = 4
) -> DetectionBatches:
    """Validation images with boxes: all of them, or the same `limit` ones for the same seed; raises as above."""
    check_whole(limit=1 if limit is None else limit, batch_size=batch_size)
    check_whole(least=0, seed=seed)
    source = _folder(source)
    images = open_coco(source.data_dir or "", source.split or "validation")
    count = len(images.pictures)
    chosen = np.arange(count) if limit is None or limit >= count else np.sort(drawn(count, limit, seed))
    return DetectionBatches(source, images, chosen, model, batch_size)


def padded(pairs: list[tuple[Tensor, Target]], with_mask: bool = True) -> dict[str, Any]:
    """One batch of images (3, height, width) and their targets."""
    height, width = (max(image.shape[axis] for image, _ in pairs) for axis in (1, 2))
    pixels = pairs[0][0].new_zeros(len(pairs), 3, height, width)
    mask = torch.zeros(len(pairs), height, width, dtype=torch.long)
    for i, (image, _) in enumerate(pairs):
        pixels[i, :, : image.shape[1], : image.shape[2]] = image
        mask[i, : image.shape[1], : image.shape[2]] = 1
    masks = {"pixel_mask": mask} if with_mask else {}
    return {"pixel_values": pixels, **masks, "labels": [target for _, target in pairs]}


def _folder(source: DataSource | str | Path) -> DataSource:
    source = as_source(source)
    if source.kind != "folder" or source.data_dir is None or source.class_map is not None:
        raise InputError(
            f"Detection works from a folder in COCO's format alone, not from {source}; give a data folder."
        )
    return source
