"""timm's transforms for a model, and random numbers that depend on (seed, position) alone.

The same position gets the same augmentation on every pass and from any worker; the caller's generators are given back.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch import nn

from ..bundled import TRAIN_TRANSFORM, VALIDATION_TRANSFORM
from ..errors import InputError, check_whole
from ..hf_images import check_shape, data_settings
from ..models import input_shape
from .source import DataSource

Transform = Callable[[Image.Image], torch.Tensor]
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
DEIT_TRANSFORM = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel"}


def data_config(model: nn.Module, source: DataSource) -> dict[str, Any]:
    """timm's data config of the model, in the size and with the channels it was built for."""
    channels, height, width = input_shape(model)
    size = source.image_size
    if size is not None:
        check_whole(image_size=size)
        embed = getattr(model, "patch_embed", None)
        if getattr(embed, "strict_img_size", False) and (height, width) != (size, size):
            raise InputError(
                f"The model was built for images of {height}×{width}, not {size}×{size}; leave the size out."
            )
        check_shape(model, (channels, size, size))
        height = width = size
    config = resolve_data_config(model=model, args={"input_size": (channels, height, width), **data_settings(model)})
    for statistic in ("mean", "std"):
        if len(config[statistic]) != channels:
            config[statistic] = (float(np.mean(config[statistic])),) * channels
    return config


def image_mode(config: dict[str, Any]) -> str:
    channels = config["input_size"][0]
    if channels not in MODES:
        raise InputError(f"The model takes {channels} channels; images have 1, 3 or 4.")
    return MODES[channels]


def validation_transform(source: DataSource, config: dict[str, Any], crop: float | None = None) -> Transform:
    """The model's own; `crop` is the part of the image's side that stays, where it is another than the model's."""
    recorded = VALIDATION_TRANSFORM if source.kind == "bundled" else {}
    given = {} if crop is None else {"crop_pct": crop}
    return create_transform(**{**config, **recorded, **given}, is_training=False)


def train_transform(
    source: DataSource, config: dict[str, Any], auto_augment: str | None = None, re_prob: float | None = None
) -> Transform:
    """The recorded transform of the bundled images, DeiT's for others; `auto_augment` "" means none."""
    if re_prob is not None and not 0 <= re_prob <= 1:
        raise InputError(f"The probability of erasing is {re_prob}; give 0 to 1.")
    given = {"auto_augment": auto_augment, "re_prob": re_prob}
    recorded = TRAIN_TRANSFORM if source.kind == "bundled" else DEIT_TRANSFORM
    said = {name: value for name, value in given.items() if value is not None}
    return training_transform(source, config, {**recorded, **said})


def training_transform(source: DataSource, config: dict[str, Any], given: dict[str, Any]) -> Transform:
    """timm's transform for training with these of its arguments; the bundled images keep their own crops."""
    recorded = TRAIN_TRANSFORM if source.kind == "bundled" else {}
    arguments = {**config, **recorded, **given}
    arguments["auto_augment"] = arguments.get("auto_augment") or None
    del arguments["crop_pct"], arguments["crop_mode"]  # of the validation transform
    try:
        transform = create_transform(**arguments, is_training=True)
    except (AssertionError, ValueError, KeyError, IndexError):
        raise InputError(
            f"timm knows no augmentation {arguments['auto_augment']!r}; try {DEIT_TRANSFORM['auto_augment']}."
        ) from None
    for step in transform.transforms:
        _keep_one_bit(step)
    return transform


def _keep_one_bit(step: Any) -> None:
    """timm's posterize asks for 0 bits at full magnitude, which Pillow refuses from version 13 on."""
    for op in getattr(step, "ops", ()):
        if op.name.startswith("Posterize"):
            op.level_fn = _AtLeastOneBit(op.level_fn)


class _AtLeastOneBit:
    """A function of its own class, because worker processes are sent it."""

    def __init__(self, bits: Callable[..., tuple[int]]):
        self.bits = bits

    def __call__(self, level: float, hparams: dict) -> tuple[int]:
        return (max(1, self.bits(level, hparams)[0]),)


def seed_for(seed: int, position: int) -> None:
    """Seed the generators that transforms draw from: Python's, numpy's and torch's."""
    python, array, tensor = np.random.SeedSequence([seed, position]).generate_state(3).tolist()
    random.seed(python)
    np.random.seed(array)
    torch.random.default_generator.manual_seed(tensor)


@contextmanager
def randomness_kept() -> Iterator[None]:
    """Give the caller's random generators back as they were."""
    states = random.getstate(), np.random.get_state(), torch.random.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.default_generator.set_state(states[2])
