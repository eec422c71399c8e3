"""The options that several commands share; commands inherit the groups they need."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .options import option

if TYPE_CHECKING:
    from ..resources import Resources


@dataclass
class ModelOptions:
    """model"""

    model: str = option(
        "bundled", "timm name, hf-hub:… (timm), hf:… (transformers), a folder of either or of secateur, or bundled"
    )
    pretrained: bool = option(True, "load the weights that belong to the name")
    checkpoint: str | None = option(None, "load these weights instead", metavar="FILE.safetensors")
    num_classes: int | None = option(None, "size of the classifier, where it is not the pretrained one", least=1)
    device: str = option("cpu", "where to compute, such as cpu or cuda")
    threads: int | None = option(None, "processor threads to use (default: all cores)", least=1)


@dataclass
class DataOptions:
    """images"""

    task: str = option("classification", "what the model does with images; detection works from a folder in COCO's"
                       " format, described in docs/detection.md", choices=("classification", "detection"))  # fmt: skip
    dataset: str | None = option(None, "bundled, or a timm name: torch/…, hfds/…, hfids/…, tfds/…, wds/…")
    data_dir: str | None = option(
        None, "folder of class folders (or of train/ and val/ with such), or a tar file; for detection one with images/"
        " and instances.json, or COCO's own", metavar="FOLDER",
    )  # fmt: skip
    class_map: str | None = option(None, "text file with a class name a line, in the model's order", metavar="FILE")
    image_size: int | None = option(
        None, "side in pixels, for detection the shorter (default: what the model was built for)", least=1
    )
    workers: int | None = option(None, "processes that decode images (default: at most 2)", least=0)
    skip_unreadable: bool = option(False, "leave out images that cannot be read, and name them")
    download: bool = option(False, "let the dataset fetch its files")

    def names_data(self) -> bool:
        """Whether the command line says where images are."""
        return self.dataset is not None or self.data_dir is not None


@dataclass
class CalibrationOptions(DataOptions):
    """images that the gradients come from"""

    split: str | None = option(None, "split to draw them from (default: the training split)")
    samples: int = option(4096, "how many", least=1)
    seed: int = option(0, "chooses these images and their augmentation", least=0)
    batch_size: int | None = option(
        None, "how many go through the model at once (default: 64, for detection 4)", least=1
    )
    augment: str = option("train", "augment them as in training, or not", choices=("train", "validation"))
    aa: str | None = option(None, "timm's augmentation policy (default: DeiT's)", metavar="POLICY")
    reprob: float | None = option(None, "probability of random erasing (default: 0.25)", least=0, most=1)


@dataclass
class EvaluationOptions(DataOptions):
    """images that accuracy is measured on"""

    eval_split: str | None = option(None, "split to take them from (default: the validation split)")
    eval_samples: int | None = option(None, "how many, the same ones each time (default: all)", least=1, metavar="N")
    eval_batch_size: int | None = option(
        None, "how many go through the model at once (default: 250, for detection 4)", least=1
    )


@dataclass
class FisherOptions:
    """the Fisher, which says how the loss depends on the weights"""

    settings: str = option(
        "own", "for what is not given: our own defaults; or the block and the λ of the CAP paper for such a model, from"
        " 4,096 gradients of 128 images each", choices=("own", "paper"),
    )  # fmt: skip
    block: int | None = option(None, "B, weights that are seen together (default: as `secateur layers` says)", least=1)
    damping: float | None = option(None, "λ, added to the Fisher's diagonal (default: the method's)", least=0)
    relative: bool | None = option(None, "λ in units of the Fisher's mean diagonal (as by default), or as it stands")
    samples_per_gradient: int = option(1, "images averaged into one gradient", least=1)
    memory: str | None = option(None, "what may be held in all, such as 12GiB (default: 60 % of what is free)",
                                metavar="SIZE")  # fmt: skip
    spill: str | None = option(
        None, "where Fishers wait that do not fit (default: the temporary folder)", metavar="FOLDER"
    )
    precision: str = option("float32", "of the passes that make gradients", choices=("auto", "float32", "bfloat16"))

    @staticmethod
    def implied(given: dict) -> dict:
        """What --settings says of the options that were not given."""
        from ..families import PAPER_GRADIENTS, PAPER_SAMPLES_PER_GRADIENT

        if given.get("settings") != "paper":
            return {}
        samples = given.get("samples_per_gradient", PAPER_SAMPLES_PER_GRADIENT)
        return {"samples_per_gradient": samples, "samples": PAPER_GRADIENTS * samples}

    def said_of_fisher(self) -> dict:
        """The solver's options that were given."""
        given = {"block": self.block, "damping": self.damping, "relative": self.relative}
        return {name: value for name, value in given.items() if value is not None}

    def resources(self) -> "Resources":
        """The memory, the disk and the precision."""
        from ..resources import Resources

        return Resources(self.memory, self.spill, self.precision)


@dataclass
class LayerOptions:
    """layers"""

    layers: list[str] = option(
        [], "weights to prune: globs or re:…, and !… to leave out (default: as `secateur layers` says)",
        metavar="PATTERN",
    )  # fmt: skip
