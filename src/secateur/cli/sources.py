"""What the shared options name: a model, and images to calibrate and to measure on."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from .. import detection
from ..certificate import MANIFEST, inspect
from ..data import Batches, DataSource, calibration_batches, evaluation_batches
from ..data.batches import in_memory as in_memory
from ..errors import InputError
from ..models import input_shape, load_model
from .checks import usable_device
from .console import Console
from .shared import CalibrationOptions, DataOptions, EvaluationOptions, ModelOptions
from .tasks import DETECTION, check_task

BUNDLED_SHAPE = (1, 28, 28)
# images that go through the model at once, for gradients and to be measured: a detector's are large
AT_ONCE = {"classification": (64, 250), "detection": (4, 4)}


def load(options: ModelOptions, needs_weights: bool = True) -> nn.Module:
    """The model, on its device, in evaluation mode."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = usable_device(options.device)
    pretrained = options.pretrained and needs_weights
    model = load_model(options.model, pretrained, options.checkpoint if needs_weights else None, options.num_classes)
    if isinstance(options, DataOptions):
        check_task(options.task, model)
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
    at_once = options.batch_size or AT_ONCE[options.task][0]
    batches: Batches
    if options.task == DETECTION:
        batches = detection.calibration_batches(source, model, options.samples, options.seed, at_once)
    else:
        augment = options.augment, options.aa, options.reprob
        batches = calibration_batches(source, model, options.samples, options.seed, *augment, at_once)
    batches.check_readable()
    return batches


def evaluation(options: EvaluationOptions, model: nn.Module) -> Batches:
    """The images to measure on, all of them known to open."""
    source = _source(options, model, options.eval_split)
    at_once = options.eval_batch_size or AT_ONCE[options.task][1]
    batches: Batches
    if options.task == DETECTION:
        batches = detection.evaluation_batches(source, model, options.eval_samples, batch_size=at_once)
    else:
        batches = evaluation_batches(source, model, options.eval_samples, batch_size=at_once)
    batches.check_readable()
    return batches


def _source(options: DataOptions, model: nn.Module, split: str | None) -> DataSource:
    if options.task == DETECTION and options.data_dir is None:
        raise InputError(
            "--task detection needs images with boxes: give --data-dir FOLDER in COCO's format; only prune --method"
            " magnitude --no-evaluate does without."
        )
    if options.dataset is None and options.data_dir is None and input_shape(model) != BUNDLED_SHAPE:
        raise InputError(
            "This model needs images: give --data-dir FOLDER, or --dataset NAME (the bundled ones are 28×28 and grey);"
            " only prune --method magnitude --no-evaluate does without."
        )
    return DataSource(
        options.dataset, options.data_dir, split, options.class_map, options.image_size, options.workers,
        options.skip_unreadable, options.download,
    )  # fmt: skip


def describe_data(used: Batches | None, measured: Batches | None, options: CalibrationOptions) -> dict:
    """Where the images came from, how they were treated, and how many there were."""
    return {
        "calibration": str(used.source) if used else None,
        "samples": used.samples if used else 0,
        "augment": "validation" if options.task == DETECTION else options.augment,
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
