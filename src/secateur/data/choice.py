"""Which images become batches, in which order and under which transform: for gradients, and for evaluation."""

from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from ..errors import InputError, check_whole
from ..models import class_count
from .batches import Batches, ListedBatches
from .opening import open_images, open_stream
from .prepare import Preparation
from .source import STREAMED, DataSource, as_source
from .streamed import StreamedBatches
from .transforms import data_config, image_mode, train_transform, validation_transform


def calibration_batches(
    source: DataSource | str | Path,
    model: nn.Module,
    samples: int = 4096,
    seed: int = 0,
    augment: str = "train",
    auto_augment: str | None = None,
    re_prob: float | None = None,
    batch_size: int = 32,
) -> Batches:
    """Training images, drawn without replacement and augmented, for the gradients of `model`.

    Args:
        samples: how many; a smaller dataset is gone round again, each time in another order and augmented afresh.
        augment: "train" for random crops and what follows here, "validation" for the plain validation transform, for
            which no image is taken twice.
        auto_augment: timm's policy; None means DeiT's rand-m9-mstd0.5-inc1 (none for the bundled images), "" none.
        re_prob: probability that a rectangle is erased; None means 0.25.
    Raises:
        InputError: nothing to read, or labels that are not the model's.

    >>> from secateur import load_model
    >>> batches = calibration_batches("bundled", load_model("bundled"), samples=100)
    >>> [len(labels) for images, labels in batches]
    [32, 32, 32, 4]
    """
    source = as_source(source)
    check_whole(samples=samples, batch_size=batch_size)
    check_whole(least=0, seed=seed)
    if augment not in ("train", "validation"):
        raise InputError(f"There is no augmentation {augment!r}; give train or validation.")
    config = data_config(model, source)
    if augment == "train":
        transform = train_transform(source, config, auto_augment, re_prob)
    else:
        transform = validation_transform(source, config)
    prepare = Preparation(transform, image_mode(config), class_count(model), seed)
    if source.kind in STREAMED:
        stream = partial(open_stream, source, "train", True, samples, seed, prepare.mode)
        return StreamedBatches(source, prepare, stream, samples, batch_size)
    images = open_images(source, "train", prepare.classes)
    count = samples if augment == "train" else min(samples, len(images))
    return ListedBatches(source, prepare, images, drawn(len(images), count, seed), batch_size)


def evaluation_batches(
    source: DataSource | str | Path,
    model: nn.Module,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    crop: float | None = None,
) -> Batches:
    """Validation images under the validation transform: all of them, or the same `limit` ones for the same seed.

    Args:
        crop: the part of an image's side that stays, where it is another than the model's own.
    Raises:
        InputError: nothing to read, or labels that are not the model's.

    >>> from secateur import load_model
    >>> evaluation_batches("bundled", load_model("bundled")).samples
    10000
    """
    source = as_source(source)
    check_whole(limit=1 if limit is None else limit, batch_size=batch_size)
    check_whole(least=0, seed=seed)
    config = data_config(model, source)
    prepare = Preparation(validation_transform(source, config, crop), image_mode(config), class_count(model), seed)
    if source.kind in STREAMED:
        stream = partial(open_stream, source, "validation", False, limit, seed, prepare.mode)
        return StreamedBatches(source, prepare, stream, limit, batch_size)
    images = open_images(source, "validation", prepare.classes)
    order = np.arange(len(images))
    if limit is not None and limit < len(images):
        order = np.sort(drawn(len(images), limit, seed))
    return ListedBatches(source, prepare, images, order, batch_size)


def drawn(available: int, count: int, seed: int) -> np.ndarray:
    """`count` image numbers, each once before any a second time."""
    random = np.random.default_rng(seed)
    rounds = [random.permutation(available) for _ in range(-(-count // available))]
    return np.concatenate(rounds)[:count]
