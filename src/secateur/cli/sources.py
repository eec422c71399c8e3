"""The options that several commands share, and what they name: a model, images, a Fisher, layers.

Commands inherit the groups they need. Heavy imports stay inside the functions, so that `--help` is quick.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from .options import option

if TYPE_CHECKING:
    from torch import nn

    from ..data import Batches, DataSource
    from ..progress import Track
    from .console import Console

BUNDLED_SHAPE = (1, 28, 28)


@dataclass
class ModelOptions:
    model: str = option("bundled", "timm name, hf-hub:…, local-dir:…, a folder that secateur wrote, or bundled")
    pretrained: bool = option(True, "load the weights that belong to the name")
    checkpoint: str | None = option(None, "load these weights instead", metavar="FILE.safetensors")
    num_classes: int | None = option(None, "size of the classifier, where it is not the pretrained one")
    device: str = option("cpu", "where to compute, such as cpu or cuda")
    threads: int | None = option(None, "processor threads to use (default: all cores)")


@dataclass
class DataOptions:
    dataset: str | None = option(None, "bundled, or a timm name: torch/…, hfds/…, hfids/…, tfds/…, wds/…")
    data_dir: str | None = option(None, "folder of class folders (or of train/ and val/ with such), or a tar file")
    class_map: str | None = option(None, "text file with a class name a line, in the model's order", metavar="FILE")
    image_size: int | None = option(None, "side of the images (default: what the model was built for)")
    workers: int | None = option(None, "processes that decode images")
    skip_unreadable: bool = option(False, "leave out images that cannot be read, and name them")
    download: bool = option(False, "let the dataset fetch its files")

    def names_data(self) -> bool:
        """Whether the command line says where images are."""
        return self.dataset is not None or self.data_dir is not None


@dataclass
class CalibrationOptions(DataOptions):
    split: str | None = option(None, "split that feeds the gradients (default: the training split)")
    samples: int = option(4096, "images that the Fisher is made of")
    seed: int = option(0, "chooses these images and their augmentation")
    batch_size: int = option(64, "images that go through the model at once")
    augment: str = option("train", "transforms of these images", choices=("train", "validation"))
    aa: str | None = option(None, "timm's augmentation policy (default: DeiT's)", metavar="POLICY")
    reprob: float | None = option(None, "probability of random erasing (default: 0.25)")


@dataclass
class EvaluationOptions(DataOptions):
    eval_split: str | None = option(None, "split to measure on (default: the validation split)")
    eval_samples: int | None = option(None, "measure on so many images, the same ones each time (default: all)")
    eval_batch_size: int = option(250, "images measured at once")


@dataclass
class FisherOptions:
    block: int | None = option(None, "B, weights that are seen together (default: the method's)")
    damping: float | None = option(None, "λ, added to the Fisher's diagonal (default: the method's)")
    relative: bool = option(True, "λ in units of the Fisher's mean diagonal, or as it stands")
    samples_per_gradient: int = option(1, "images averaged into one gradient; 128 repeats the paper")

    def said_of_fisher(self) -> dict:
        """The solver's options that were given."""
        given = {"block": self.block, "damping": self.damping, "relative": None if self.relative else False}
        return {name: value for name, value in given.items() if value is not None}


@dataclass
class LayerOptions:
    layers: list[str] = option([], "patterns of weight names: globs, re:…, or !… to leave out", metavar="PATTERN")


# --- models -----------------------------------------------------------------------------------------------------------


def load(options: ModelOptions, needs_weights: bool = True) -> "nn.Module":
    """The model, on its device, in evaluation mode."""
    import torch

    from ..models import load_model

    if options.threads is not None:
        if options.threads < 1:
            raise InputError(f"There cannot be {options.threads} threads; give 1 or more.")
        torch.set_num_threads(options.threads)
    device = _device(options.device)
    pretrained = options.pretrained and needs_weights
    model = load_model(options.model, pretrained, options.checkpoint if needs_weights else None, options.num_classes)
    return model.to(device)


def _device(name: str):
    import torch

    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split()).split(". ")[0]
        raise InputError(f"The device {name!r} cannot be used ({reason[:120]}); try cpu.") from None
    return device


# --- data -------------------------------------------------------------------------------------------------------------


def calibration(options: CalibrationOptions, model: "nn.Module") -> "Batches":
    """The images that feed the Fisher, all of them known to open."""
    from ..data import calibration_batches

    source = _source(options, model, options.split)
    batches = calibration_batches(
        source, model, options.samples, options.seed, options.augment, options.aa, options.reprob, options.batch_size
    )
    batches.check_readable()
    return batches


def evaluation(options: EvaluationOptions, model: "nn.Module") -> "Batches":
    """The images to measure on, all of them known to open."""
    from ..data import evaluation_batches

    source = _source(options, model, options.eval_split)
    batches = evaluation_batches(source, model, options.eval_samples, batch_size=options.eval_batch_size)
    batches.check_readable()
    return batches


def _source(options: DataOptions, model: "nn.Module", split: str | None) -> "DataSource":
    from ..data import DataSource
    from ..models import input_shape

    if options.dataset is None and options.data_dir is None and input_shape(model) != BUNDLED_SHAPE:
        raise InputError(
            "This model needs images: give --data-dir FOLDER, or --dataset NAME; the bundled ones are 28×28 and grey."
        )
    return DataSource(
        options.dataset, options.data_dir, split, options.class_map, options.image_size, options.workers,
        options.skip_unreadable, options.download,
    )  # fmt: skip


def in_memory(batches: "Batches", track: "Track") -> "Batches | list":
    """Batches that are measured on again and again: decoded once, where they fit in a quarter of the free memory."""
    from ..memory import available_bytes

    first, _ = next(iter(batches))
    if first.nbytes * len(batches) > available_bytes() / 4:
        return batches
    return list(track(batches, "images", len(batches)))


def describe_data(used: "Batches | None", measured: "Batches | None", augment: str) -> dict:
    """Where the images came from, how they were treated, and how many there were."""
    return {
        "calibration": str(used.source) if used else None,
        "samples": used.samples if used else 0,
        "augment": augment,
        "evaluation": str(measured.source) if measured else None,
        "images": measured.samples if measured else 0,
        "skipped": sorted({*(used.skipped if used else ()), *(measured.skipped if measured else ())}),
    }


def notes(console: "Console", batches: "Iterable[Batches | None]") -> None:
    """What should be known of the data before the work, once each."""
    present = [part for part in batches if part is not None]
    sentences = [note for part in present for note in part.notes]
    sentences += [f"Left out {name}: {why}." for part in present for name, why in part.skipped.items()]
    for sentence in dict.fromkeys(sentences):
        console.note(sentence)


def read_table(path: str) -> dict[str, float]:
    """A YAML file of `layer pattern: sparsity` lines."""
    import yaml

    try:
        table = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"The table {path} cannot be read: {str(error).splitlines()[0]}.") from None
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise InputError(f"The table {path} should hold lines of `layer pattern: sparsity`.")
    return table
