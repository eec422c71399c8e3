"""Training batches that follow from (seed, step) alone, so that a run can be taken up at any of its steps.

The images of an epoch, their order and the augmentation of each are functions of the seed, the epoch and the place in
it; workers and processes only share the work. Every process gets its part of each batch.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from ..data.batches import ListedBatches, check_skippable, loaded_batches, worker_count
from ..data.images import Images
from ..data.opening import open_images
from ..data.prepare import Preparation, PreparedImages, Problem
from ..data.source import STREAMED, DataSource
from ..data.transforms import data_config, image_mode, training_transform
from ..distributed import ALONE, Processes
from ..errors import InputError
from ..models import class_count
from .recipe import Recipe

Batch = tuple[Tensor, Tensor]


class EpochImages(PreparedImages):
    """Images by their place in the whole run: the p-th is number p mod n of epoch p // n, in that epoch's order."""

    def __init__(self, images: Images, prepare: Preparation, chosen: np.ndarray):
        super().__init__(images, prepare, chosen)
        self._epoch, self._shuffled = -1, chosen

    def index(self, position: int) -> int:
        epoch, place = divmod(position, len(self.order))
        if epoch != self._epoch:
            random = np.random.default_rng([self.prepare.seed, epoch])
            self._epoch, self._shuffled = epoch, random.permutation(self.order)
        return int(self._shuffled[place])


class Feed:
    """The images of a run."""

    def __init__(self, recipe: Recipe, source: DataSource, model: nn.Module, processes: Processes = ALONE):
        if source.kind in STREAMED:
            raise InputError(
                f"{source} can only be read in order, and training takes its images by number, so that a killed run"
                " goes on where it was; unpack it to a folder, or use torch/ or hfds/."
            )
        config = data_config(model, source)
        transform = training_transform(source, config, recipe.augmentation.transform())
        prepare = Preparation(transform, image_mode(config), class_count(model), recipe.seed)
        images = open_images(source, "train", prepare.classes)
        wanted = recipe.data.images or len(images)
        if wanted > len(images):
            raise InputError(f"data.images is {wanted}, and {source} has {len(images)}.")
        chosen = np.sort(np.random.default_rng(recipe.seed).permutation(len(images))[:wanted])
        self.source, self.processes, self.batch_size = source, processes, recipe.batch_size
        self.dataset = EpochImages(images, prepare, chosen)
        self.workers = worker_count(source)
        self.in_pairs, self.skipped = recipe.augmentation.mixes, dict[str, str]()
        self.micro = recipe.micro_batch or recipe.batch_size // processes.count
        self._check_parts(recipe)

    @property
    def images(self) -> int:
        """Of an epoch."""
        return len(self.dataset)

    @property
    def parts(self) -> int:
        """Forward passes of this process in one optimizer step."""
        return self.batch_size // (self.micro * self.processes.count)

    def batches(self, first: int, steps: int) -> Iterator[list[Batch]]:
        """This process's part of the batches of steps `first` to `steps`, each in micro-batches."""
        places = (part for step in range(first, steps) for part in self._places(step))
        loaded = loaded_batches(self.dataset, places, self.workers, self.source)
        for _ in range(first, steps):
            yield [self._whole(*next(loaded)) for _ in range(self.parts)]

    def calibration(self, samples: int, seed: int, batch_size: int = 32) -> ListedBatches:
        """This process's part of `samples` images under the training augmentation, for the gradients of a Fisher."""
        prepare = replace(self.dataset.prepare, seed=seed)
        random, available = np.random.default_rng(seed), len(self.dataset)
        rounds = [random.permutation(self.dataset.order) for _ in range(-(-samples // available))]
        order = np.concatenate(rounds)[:samples]
        batches = ListedBatches(self.source, prepare, self.dataset.images, order, batch_size)
        batches.positions = batches.positions[self.processes.part(samples)]
        return batches

    def _places(self, step: int) -> Iterator[list[int]]:
        epoch, batch = divmod(step, self.images // self.batch_size)
        start = epoch * self.images + batch * self.batch_size
        for part in range(self.parts):
            first = start + (part * self.processes.count + self.processes.rank) * self.micro
            yield list(range(first, first + self.micro))

    def _whole(self, batch: Batch | None, problems: list[Problem]) -> Batch:
        """A micro-batch without the images that could not be read; an even number, where they are mixed in pairs."""
        for problem in problems:
            check_skippable(problem, self.source)
            self.skipped[problem.name] = problem.reason
        found = 0 if batch is None else len(batch[1])
        count = found - found % 2 if self.in_pairs else found
        if batch is None or not count:
            raise InputError(f"None of the {self.micro} images of a batch of {self.source} could be read.")
        return batch[0][:count], batch[1][:count]

    def _check_parts(self, recipe: Recipe) -> None:
        count = self.processes.count
        if recipe.batch_size % (self.micro * count):
            raise InputError(
                f"{count} processes with {self.micro} images a pass do not divide the batch of {recipe.batch_size};"
                " give another batch_size or micro_batch."
            )
        if self.in_pairs and self.micro % 2:
            raise InputError(
                f"Images are mixed in pairs, and {self.micro} go through the model at once; give an even micro_batch."
            )
