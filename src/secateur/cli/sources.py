"""What the shared options name: a model, and images to calibrate and to measure on."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from ..certificate import MANIFEST, inspect
from ..data import Batches, DataSource, calibration_batches, evaluation_batches
from ..errors import InputError
from ..memory import available_bytes
from ..models import input_shape, load_model
from ..progress import Track
from .checks import usable_device
from .console import Console
from .shared import CalibrationOptions, DataOptions, EvaluationOptions, ModelOptions

BUNDLED_SHAPE = (1, 28, 28)


def load(options: ModelOptions, needs_weights: bool = True) -> nn.Module:
    """The model, on its device, in evaluation mode."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = usable_device(options.device)
    pretrained = options.pretrained and needs_weights
    model = load_model(options.model, pretrained, options.checkpoint if needs_weights else None, options.num_classes)
    return model.to(device)


def saved_model(options: ModelOptions) -> nn.Module:
    """As `load`; the zeros of a run directory are certified first."""
    if options.checkpoint is None and options.pretrained and (Path(options.model) / MANIFEST).is_file():
        certificate = inspect(options.model)
        if not certificate.ok:
            raise InputError(f"{options.model} is not what was saved: {certificate.problems[0]}")
    return load(options)


def calibration(options: CalibrationOptions, model: nn.Module) -> Batches:
    """The images that feed the Fisher, all of them known to open."""
    source = _source(options, model, options.split)
    batches = calibration_batches(
        source, model, options.samples, options.seed, options.augment, options.aa, options.reprob, options.batch_size
    )
    batches.check_readable()
    return batches


def evaluation(options: EvaluationOptions, model: nn.Module) -> Batches:
    """The images to measure on, all of them known to open."""
    source = _source(options, model, options.eval_split)
    batches = evaluation_batches(source, model, options.eval_samples, batch_size=options.eval_batch_size)
    batches.check_readable()
    return batches


def _source(options: DataOptions, model: nn.Module, split: str | None) -> DataSource:
    if options.dataset is None and options.data_dir is None and input_shape(model) != BUNDLED_SHAPE:
        raise InputError(
            "This model needs images: give --data-dir FOLDER, or --dataset NAME (the bundled ones are 28×28 and grey);"
            " only prune --method magnitude --no-evaluate does without."
        )
    return DataSource(
        options.dataset, options.data_dir, split, options.class_map, options.image_size, options.workers,
        options.skip_unreadable, options.download,
    )  # fmt: skip


def in_memory(batches: Batches, track: Track) -> Batches | list:
    """Batches that are measured on again and again: decoded once, where they fit in a quarter of the free memory."""
    first, _ = next(iter(batches))
    if first.nbytes * len(batches) > available_bytes() / 4:
        return batches
    return list(track(batches, "images", len(batches)))


def describe_data(used: Batches | None, measured: Batches | None, augment: str) -> dict:
    """Where the images came from, how they were treated, and how many there were."""
    return {
        "calibration": str(used.source) if used else None,
        "samples": used.samples if used else 0,
        "augment": augment,
        "evaluation": str(measured.source) if measured else None,
        "images": measured.samples if measured else 0,
        "skipped": sorted({*(used.skipped if used else ()), *(measured.skipped if measured else ())}),
    }


def notes(console: Console, batches: Iterable[Batches | None]) -> None:
    """What should be known of the data; again after the work, for the images found unreadable on the way."""
    for part in batches:
        for note in part.notes if part is not None else ():
            console.note(note)
        for name, why in part.skipped.items() if part is not None else ():
            console.note(f"Left out {name}: {why}.")
