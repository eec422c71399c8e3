"""Batches of images and labels that can be gone through again and again, and are the same each time.

Which image stands at which position, and how it is augmented, follows from the seed alone; workers only share the work.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import InputError, check_whole
from ..memory import available_bytes
from ..progress import Track, silent
from .images import Images
from .prepare import Preparation, PreparedImages, Problem, collate, unreadable
from .source import DataSource


class Batches(ABC):
    """Iterate for (images, labels), or what else images become, on the CPU; `len` is the number of batches, `samples`
    that of the images.

    `skipped` holds name -> reason of the images that could not be read, when the source allows for that; `notes` are
    sentences the user should see; `rounds` says how often the dataset is gone round, where its size is known.
    """

    def __init__(self, source: DataSource, batch_size: int):
        self.source, self.batch_size = source, batch_size
        self.skipped: dict[str, str] = {}
        self.notes: list[str] = []
        self.rounds: float | None = None

    @property
    @abstractmethod
    def samples(self) -> int: ...

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)

    def __iter__(self) -> Iterator:
        any_read = False
        for batch, problems in self._collated():
            for problem in problems:
                self._meet(problem)
            if batch is not None:
                any_read = True
                yield batch
        if not any_read:
            raise InputError(f"None of the images of {self.source} could be read.")

    @abstractmethod
    def _collated(self) -> Iterable[tuple[Any, list[Problem]]]:
        """Batches, None where none of its images could be used, each with the problems met in it."""

    def check_readable(self) -> int:
        """Open the header of every chosen image where that is cheap; returns how many can be read.

        Raises:
            InputError: naming the first image that cannot, unless the source says to skip those.
        """
        return self.samples

    def _meet(self, problem: "Problem") -> None:
        check_skippable(problem, self.source)
        self.skipped[problem.name] = problem.reason


class ListedBatches(Batches):
    """Batches of images that can be opened by number, decoded by worker processes or here."""

    def __init__(self, source: DataSource, prepare: Preparation, images: Images, order: np.ndarray, batch_size: int):
        super().__init__(source, batch_size)
        self.dataset = PreparedImages(images, prepare, order)
        self.positions = np.arange(len(order))  # those of `order` that can be read, as far as known
        self.rounds = len(order) / len(images)
        self.workers = worker_count(source)
        classes = len(images.classes) if images.labels is not None and source.class_map is None else 0
        if 0 < classes < (prepare.classes or 0):
            self.notes.append(
                f"{source} has {classes} classes and the model {prepare.classes}: unless a class map says otherwise"
                " they are numbered in the order of their names."
            )
        if self.rounds > 1:
            self.notes.append(f"{source} has {len(images)} images, so they are gone round {self.rounds:.3g} times.")

    @property
    def samples(self) -> int:
        return len(self.positions)

    def check_readable(self) -> int:
        images, order = self.dataset.images, self.dataset.order
        bad = set()
        for index in np.unique(order[self.positions]).tolist():
            try:
                images.check(index)
            except Exception as error:  # decoders fail in many ways
                self._meet(unreadable(images.name(index), error))
                bad.add(index)
        self.positions = self.positions[~np.isin(order[self.positions], list(bad))]
        if not self.samples:
            raise InputError(f"None of the images of {self.source} could be read.")
        return self.samples

    def _collated(self):
        chunks = [self.positions[i : i + self.batch_size] for i in range(0, self.samples, self.batch_size)]
        places = [chunk.tolist() for chunk in chunks]
        return loaded_batches(self.dataset, places, min(self.workers, len(chunks)), self.source)


def loaded_batches(
    dataset: PreparedImages, places: Iterable[list[int]], workers: int, source: DataSource
) -> Iterator[tuple[tuple[Tensor, Tensor] | None, list[Problem]]]:
    """A batch, or None, and the problems, of the images at each list of places in that order, by so many processes.

    Raises:
        InputError: when one of the processes dies.
    """
    loader = DataLoader(
        dataset,
        batch_sampler=places,  # type: ignore[arg-type]  # any iterable will do
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator(),  # else the loader draws from the caller's
    )
    with deaths_told(source):
        yield from loader


@contextmanager
def deaths_told(source: DataSource) -> Iterator[None]:
    """Say in one sentence that a process that reads images has died, which torch raises wherever the caller is."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise InputError(
            f"A process that reads {source} was killed, most often for want of memory; use fewer workers or 0."
        ) from None


def check_skippable(problem: Problem, source: DataSource) -> None:
    """Raise InputError unless the image that could not be used is one that the source leaves out."""
    if not problem.is_skippable:
        raise InputError(f"{problem.name} of {source} {problem.reason}.")
    if not source.skip_unreadable:
        raise InputError(
            f"{problem.name} cannot be read as an image ({problem.reason}); repair or remove it, or pass"
            " --skip-unreadable."
        )


def in_memory(batches: Batches, track: Track = silent) -> Batches | list:
    """Batches that are measured on again and again: decoded once, where they fit in a quarter of the free memory."""
    first = next(iter(batches))
    images = first["pixel_values"] if isinstance(first, Mapping) else first[0]
    if images.nbytes * len(batches) > available_bytes() / 4:
        return batches
    return list(track(batches, "images", len(batches)))


def worker_count(source: DataSource) -> int:
    """The processes that decode its images, where nobody says: two at most, and none for those in memory."""
    if source.workers is not None:
        check_whole(least=0, workers=source.workers)
        return source.workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if source.kind == "bundled" else min(2, cores)
