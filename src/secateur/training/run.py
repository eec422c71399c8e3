"""The parts of a training, made from its recipe, and how far it has come."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from timm.optim import create_optimizer_v2, list_optimizers
from timm.utils import ModelEmaV3
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..checkpoint import load_masks
from ..data import DataSource, evaluation_batches
from ..data.batches import ListedBatches, in_memory
from ..distributed import Processes, joined_processes
from ..errors import InputError, nearest
from ..hf_models import is_detector
from ..layers import select_layers
from ..manifest import MASKS
from ..models import class_count, input_shape, load_model
from ..progress import Track, silent
from ..steps import Masks
from .feed import Feed
from .journal import Journal, Listener
from .keeper import MaskKeeper
from .losses import Teacher, TrainingLoss
from .recipe import Recipe
from .timeline import Timeline, make_timeline

BUNDLED_SHAPE = (1, 28, 28)


@dataclass
class Run:
    """Everything a training is made of; step, changed and seconds say how far it has come."""

    recipe: Recipe
    timeline: Timeline
    feed: Feed
    held: Iterable  # this process's part of the images to measure on
    model: nn.Module
    network: nn.Module  # what a training step calls: the model itself, or what it is wrapped in
    keeper: MaskKeeper
    optimizer: Optimizer
    stepper: Any  # accelerate's view of the optimizer
    average: ModelEmaV3 | None
    loss: TrainingLoss
    accelerator: Accelerator
    processes: Processes
    out: Path
    journal: Journal
    track: Track = silent
    step: int = 0
    changed: bool = False  # whether the change of the masks that is due at this step is done
    seconds: float = 0.0

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.processes.rank == 0

    @property
    def shown(self) -> nn.Module:
        """The model that is measured and written: the averaged one, where weights are averaged."""
        return self.model if self.average is None else self.average.module

    @property
    def where(self) -> str:
        """The step, in words."""
        return f"step {self.step} (epoch {self.step / self.timeline.steps_per_epoch:.2f})"


def prepare(
    recipe: Recipe,
    out: str | Path,
    track: Track = silent,
    listeners: Sequence[Listener] = (),
    device: str | None = None,
) -> Run:
    """The run at its start; nothing is written yet.

    Args:
        device: where to compute; by default the best there is, as accelerate finds it.
    Raises:
        InputError: for what the recipe asks of a model or of images that are not there.
    """
    accelerator = Accelerator(mixed_precision=recipe.precision, cpu=device == "cpu")
    processes = joined_processes()
    source = source_of(recipe)
    model = starting_model(recipe).to(accelerator.device)
    check_images(source, model)
    feed = Feed(recipe, source, model, processes)
    timeline = make_timeline(recipe, feed.images)
    teacher = _teacher(recipe, model)
    keeper = MaskKeeper(model, starting_masks(recipe, model))
    optimizer = _optimizer(recipe, model)
    keeper.attach(optimizer)
    return Run(
        recipe=recipe,
        timeline=timeline,
        feed=feed,
        held=_held(recipe, source, model, processes, track),
        model=model,
        network=_wrapped(recipe, model, processes),
        keeper=keeper,
        optimizer=optimizer,
        stepper=accelerator.prepare_optimizer(optimizer),
        average=ModelEmaV3(model, decay=recipe.ema) if recipe.ema else None,
        loss=TrainingLoss(recipe.augmentation, class_count(model) or 0, teacher),
        accelerator=accelerator,
        processes=processes,
        out=Path(out),
        journal=Journal(Path(out) / "metrics.csv", listeners),
        track=track,
    )


def source_of(recipe: Recipe) -> DataSource:
    data = recipe.data
    return DataSource(
        data.dataset, data.data_dir, None, data.class_map, data.image_size, data.workers, data.skip_unreadable,
        data.download,
    )  # fmt: skip


def starting_model(recipe: Recipe, pretrained: bool | None = None) -> nn.Module:
    """The model that training starts from.

    Raises:
        InputError: when it is no classifier.
    """
    wanted = recipe.pretrained if pretrained is None else pretrained
    torch.manual_seed(recipe.seed)  # where weights are random
    model = load_model(recipe.model, wanted, None, recipe.num_classes, recipe.augmentation.drop_path)
    if is_detector(model):
        raise InputError(f"{recipe.model} finds objects; secateur train is for classifiers.")
    return model


def starting_masks(recipe: Recipe, model: nn.Module) -> Masks:
    """What is kept at the start: as a folder of secateur says, elsewhere the chosen weights that are not zero.

    Raises:
        InputError: when the recipe starts from a sparse model and this one has no zeros.
    """
    masks = {name: weight.parameter != 0 for name, weight in select_layers(model, list(recipe.layers) or None).items()}
    folder = Path(recipe.model.removeprefix("local-dir:"))
    if recipe.pretrained and (folder / MASKS).is_file():
        masks |= {name: mask.to(next(model.parameters()).device) for name, mask in load_masks(folder).items()}
    if recipe.from_sparse and all(mask.all() for mask in masks.values()):
        raise InputError(f"The recipe fine-tunes a sparse model, and {recipe.model} has no zeros; name a folder that"
                         " secateur wrote with --model.")  # fmt: skip
    return masks


def check_images(source: DataSource, model: nn.Module) -> None:
    if source.kind == "bundled" and input_shape(model) != BUNDLED_SHAPE:
        raise InputError("This model needs images: give --data-dir FOLDER (the bundled ones are 28×28 and grey).")


def _teacher(recipe: Recipe, model: nn.Module) -> Teacher | None:
    if recipe.distillation is None:
        return None
    teacher = deepcopy(model) if recipe.teacher is None else load_model(recipe.teacher)
    if class_count(teacher) != class_count(model):
        raise InputError(f"The teacher {recipe.teacher} tells {class_count(teacher)} classes apart, and the model"
                         f" {class_count(model)}.")  # fmt: skip
    device = next(model.parameters()).device
    return Teacher(teacher.to(device).eval().requires_grad_(False), recipe.distillation)


def _optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    try:
        return create_optimizer_v2(
            model, recipe.optimizer, lr=recipe.learning_rate.highest, weight_decay=recipe.augmentation.weight_decay
        )
    except (ValueError, AssertionError, KeyError):
        raise InputError(
            f"timm has no optimizer {recipe.optimizer!r}.{nearest(recipe.optimizer, map(str, list_optimizers()))}"
        ) from None


def _wrapped(recipe: Recipe, model: nn.Module, processes: Processes) -> nn.Module:
    network = model
    if processes.count > 1:
        device = next(model.parameters()).device
        network = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    return torch.compile(network) if recipe.compile else network  # type: ignore[return-value]


def _held(recipe: Recipe, source: DataSource, model: nn.Module, processes: Processes, track: Track) -> Iterable:
    batches = evaluation_batches(
        source, model, recipe.data.eval_images, batch_size=250, crop=recipe.augmentation.test_crop
    )
    assert isinstance(batches, ListedBatches)  # the feed refused others
    batches.positions = batches.positions[processes.part(batches.samples)]
    return in_memory(batches, track)
