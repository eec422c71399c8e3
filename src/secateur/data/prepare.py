"""From an image's number to what a batch is made of; what cannot be used becomes a `Problem` instead of an exception,
so that it crosses from a worker process to the caller as one sentence.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import InputError
from .images import Images
from .transforms import Transform, randomness_kept, seed_for


@dataclass(frozen=True)
class Problem:
    """An image that could not be used, as a worker hands it to the process that reads the batches."""

    name: str
    reason: str
    is_skippable: bool = True


def unreadable(name: str, error: Exception) -> Problem:
    reason = " ".join(str(error).split()).replace(f" {name!r}", "").replace(name, "it") or type(error).__name__
    return Problem(name, reason.rstrip("."))


@dataclass(frozen=True)
class Preparation:
    """From a decoded image and its label to what a batch is made of."""

    transform: Transform
    mode: str  # PIL's: L, RGB or RGBA
    classes: int | None  # the model's, where it says
    seed: int

    def __call__(self, name: str, image, label, position: int) -> tuple[Tensor, int] | Problem:
        try:
            number = -1 if label is None else int(label)
        except (TypeError, ValueError):
            return Problem(name, f"has the label {label!r}, which is not the number of one class", is_skippable=False)
        if number < 0 or (self.classes is not None and number >= self.classes):
            has = "no label" if number < 0 else f"label {number}"
            return Problem(name, f"has {has}, but the model has classes 0 to {(self.classes or 0) - 1}", False)
        seed_for(self.seed, position)
        return self.transform(image), number


class PreparedImages(Dataset):
    """Batches by position: image `order[position]`, transformed under the random numbers of (seed, position)."""

    def __init__(self, images: Images, prepare: Preparation, order: np.ndarray):
        self.images, self.prepare, self.order = images, prepare, order

    def __len__(self) -> int:
        return len(self.order)

    def index(self, position: int) -> int:
        """The number of the image that stands there."""
        return int(self.order[position])

    def __getitems__(self, positions: list[int]) -> list[tuple[Tensor, int] | Problem]:
        with randomness_kept(), _one_thread():  # saving the states costs as much as an augmentation: once a batch
            return [self._item(position) for position in positions]

    def _item(self, position: int) -> tuple[Tensor, int] | Problem:
        index = self.index(position)
        try:
            image, label = self.images.load(index, self.prepare.mode)
        except InputError as error:
            return Problem(self.images.name(index), str(error), is_skippable=False)
        except Exception as error:  # decoders fail in many ways: OSError, SyntaxError, struct.error, ...
            return unreadable(self.images.name(index), error)
        return self.prepare(self.images.name(index), image, label, position)


def collate(items: list[tuple[Tensor, int] | Problem]) -> tuple[tuple[Tensor, Tensor] | None, list[Problem]]:
    """(images, labels) of those that could be used, None without any; and the problems of the others."""
    pairs = [item for item in items if not isinstance(item, Problem)]
    problems = [item for item in items if isinstance(item, Problem)]
    if not pairs:
        return None, problems
    images = torch.stack([image for image, _ in pairs])
    images = images.contiguous(memory_format=torch.channels_last)  # pixel by pixel: convolutions are faster
    labels = torch.tensor([label for _, label in pairs], dtype=torch.long)
    return (images, labels), problems


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker process: these tensors are small, and on busy cores sharing them takes ten times longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
