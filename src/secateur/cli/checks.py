"""What is checked before any work: before the model is loaded what can be known without it, the rest right after."""

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from ..comparison import Contender, goals_for
from ..data import DataSource
from ..detection.coco import find_index
from ..errors import InputError
from ..files import check_space
from ..layers import select_layers
from ..patterns import NM
from ..sparsity import Share, Wanted, read_sparsity
from ..steps import starting_masks
from .shared import CalibrationOptions, DataOptions, FisherOptions
from .tasks import DETECTION, check_installed
from .values import read_yaml


def check_data(options: DataOptions) -> None:
    """Whether there is such a dataset, and something where the images should be."""
    check_installed(options.task)
    if options.task == DETECTION:
        _check_detection(options)
    DataSource(options.dataset, options.data_dir)
    if options.data_dir is not None and not options.download:
        place = Path(options.data_dir)
        if not place.exists():
            raise InputError(f"There is no data folder {place}; give one that exists.")
        if place.is_dir() and not list(islice(place.iterdir(), 1)):
            raise InputError(f"The data folder {place} is empty; give one that holds class folders of images.")


def _check_detection(options: DataOptions) -> None:
    """Whether nothing is asked for that only classification has, and the folder holds an index of each split."""
    for name in ("dataset", "class_map", "workers", "aa", "reprob"):
        if getattr(options, name, None) is not None:
            raise InputError(f"--{name.replace('_', '-')} is of classification; leave it out with --task detection.")
    if options.data_dir is None:
        return
    splits = {"split": "train", "eval_split": "validation"}
    for name, split in splits.items():
        if hasattr(options, name):
            find_index(Path(options.data_dir), getattr(options, name) or split)


def check_gradients(calibration: CalibrationOptions, fisher: FisherOptions) -> None:
    """Whether the images are enough for one gradient, and the resources are such."""
    fisher.resources()
    if fisher.samples_per_gradient > calibration.samples:
        raise InputError(
            f"--samples-per-gradient is {fisher.samples_per_gradient}, more than the {calibration.samples} images of"
            " --samples; give fewer, or more images."
        )


def goals_of(sparsities: Sequence[float | str], table: str | None = None) -> list[Wanted]:
    """What is asked for: a table of layers, or fractions and patterns, each once."""
    if table is None:
        wanted = [read_sparsity(sparsity) for sparsity in sparsities]
        return [goal for i, goal in enumerate(wanted) if goal not in wanted[:i]]
    rows = read_yaml(table, "table")
    if not rows or not isinstance(rows, dict) or not all(isinstance(key, str) for key in rows):
        raise InputError(f"The table {table} should hold lines of `layer pattern: sparsity`.")
    return [read_sparsity(rows, f" in {table}")]


def check_goals(
    model: nn.Module, layers: list[str], contenders: Sequence["Contender"], goals: Sequence[Wanted]
) -> None:
    """Whether the patterns match, and the model has no more zeros than it is to end with."""
    weights = select_layers(model, layers or None)
    goals_for(weights, starting_masks(weights, None), contenders, goals)


def check_room(out: str, model: nn.Module, copies: int) -> None:
    """Whether the disk has room for `copies` of the model with their masks."""
    size = sum(tensor.numel() * (tensor.element_size() + 1 / 8) for tensor in model.state_dict().values())
    check_space(out, math.ceil(copies * size))


def usable_device(name: str) -> torch.device:
    """The device, once something was put on it and read back."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split()).split(". ")[0]
        raise InputError(f"The device {name!r} cannot be used ({reason[:120]}); try cpu.") from None
    return device


def name_of(share: Share) -> str:
    """How a folder is named after it: 2of4, or the shortest text that means this number, without a needless .0."""
    return f"{share.keep}of{share.of}" if isinstance(share, NM) else str(float(share)).removesuffix(".0")
