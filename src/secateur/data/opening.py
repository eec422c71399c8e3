"""The images of a source, opened and checked before use; what a library says of its failures becomes one sentence."""

import importlib.util
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from timm.data import ImageNetInfo, create_dataset
from timm.data.readers import create_reader

from ..bundled import LABEL_NAMES, load_images
from ..errors import InputError
from ..hub import quick_hub
from .images import ArrayImages, Images, ReaderImages, TorchvisionImages
from .source import PACKAGES, DataSource

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", "eval", "evaluation"),
    "test": ("test", "testing"),
}
SPLIT_NAMES = [name for names in SPLITS.values() for name in names]


def open_images(source: DataSource, split: str, classes: int | None) -> Images:
    """The images of `split` (unless the source names another) of any source that is not streamed.

    Raises:
        InputError: nothing there, nothing readable as images, or labels that are not the model's.
    """
    split = source.split or split
    kind = source.kind
    if kind == "bundled":
        images: Images = _bundled(source, split)
    elif kind == "folder":
        images = _folder(source, split, classes)
    elif kind == "torch":
        if source.data_dir is None:
            raise InputError(f"{source.dataset} needs a data folder, where its files are kept.")
        if source.class_map is not None:
            raise InputError(f"{source.dataset} numbers its classes itself; leave the class map out.")
        images = TorchvisionImages(_opened(source, lambda: create_dataset(*_names(source), split, **_choices(source))))
    else:
        images = ReaderImages(_opened(source, lambda: create_reader(*_names(source), split, **_choices(source))))
    if not len(images):
        raise InputError(f"{source} holds no images; give another split or folder.")
    _check_labels(source, images, classes)
    return images


def open_stream(source: DataSource, split: str, shuffled: bool, count: int | None, seed: int, mode: str):
    """timm's iterable dataset of PIL images and labels; shuffled, it goes round until there are `count`."""
    choices = _choices(source) | {"is_training": shuffled, "num_samples": count, "seed": seed, "input_img_mode": mode}
    return _opened(source, lambda: create_dataset(*_names(source), source.split or split, **choices))


def _names(source: DataSource) -> tuple[str, str | None]:
    return source.dataset or "", None if source.data_dir is None else str(source.data_dir)


def _choices(source: DataSource) -> dict[str, Any]:
    return {"class_map": _class_map(source), "download": source.download or None}


def _bundled(source: DataSource, split: str) -> Images:
    if source.data_dir is not None:
        raise InputError(f"The bundled images need no data folder; to read {source.data_dir} leave the dataset out.")
    if source.class_map is not None:
        raise InputError("The bundled images are labelled already; leave the class map out.")
    if split not in SPLIT_NAMES:
        raise InputError(f"The bundled images have no split {split!r}; there are train and test.")
    return ArrayImages(*load_images("train" if split in SPLITS["train"] else "test"), LABEL_NAMES)


def _folder(source: DataSource, split: str, classes: int | None) -> Images:
    if source.data_dir is None:
        raise InputError("A folder dataset needs a data folder; give one, or the bundled dataset.")
    root = Path(source.data_dir)
    if not root.exists():
        raise InputError(f"There is no data folder {root}.")
    if root.is_file() and root.suffix.lower() != ".tar":
        raise InputError(f"{root} is neither a folder nor a .tar file; unpack it, or give the folder.")
    images = _read_folder(_split_folder(root, split), _class_map(source), classes)
    if set(images.classes.values()) == {""}:
        raise InputError(f"{root} holds images but no class folders; put each image in a folder named as its class.")
    return images


def _read_folder(root: Path, class_map: str | None, classes: int | None) -> ReaderImages:
    """The images of a folder or tar file; ImageNet's folders keep their numbers, though some may be missing."""
    try:
        images = ReaderImages(create_reader("", str(root), class_map=class_map))
        if class_map is None and classes == 1000 and (numbers := _imagenet_numbers(images)):
            images = ReaderImages(create_reader("", str(root), class_map=numbers))
        return images
    except tarfile.TarError as error:
        raise InputError(f"{root} cannot be read as a tar file: {_sentence(error)}; pack or copy it again.") from None
    except (RuntimeError, ValueError):  # timm found no image
        named = " that the class map names" if class_map else ""
        raise InputError(
            f"{root} holds no image in a class folder{named}; images end in .jpg, .jpeg or .png."
        ) from None
    except OSError as error:
        raise InputError(f"{root} cannot be read: {_sentence(error)}.") from None


def _split_folder(root: Path, split: str) -> Path:
    """The folder of a split, or the root itself where it holds no split at all but classes."""
    if root.is_file():
        return root
    for name in (split, *next((names for names in SPLITS.values() if split in names), ())):
        if (root / name).is_dir():
            return root / name
    others = [name for name in SPLIT_NAMES if (root / name).is_dir()]
    if others or split not in SPLIT_NAMES:
        raise InputError(f"{root} has no split {split!r}; it holds {', '.join(others) or 'none of the usual ones'}.")
    return root


def _class_map(source: DataSource) -> str | None:
    if source.class_map is None:
        return None
    path = Path(source.class_map)
    if not path.is_file() and source.data_dir is not None:
        path = Path(source.data_dir) / path
    if not path.is_file() or path.suffix != ".txt":
        raise InputError(f"The class map {source.class_map} is no text file; give a .txt with one class name a line.")
    return str(path)


def _imagenet_numbers(images: Images) -> dict[str, int]:
    """WordNet id -> class of ImageNet-1k, when all folders are named so: a part of the classes keeps its numbers."""
    numbers = {name: number for number, name in enumerate(ImageNetInfo().label_names())}
    names = images.classes.values()
    return numbers if len(names) < len(numbers) and all(name in numbers for name in names) else {}


def _check_labels(source: DataSource, images: Images, classes: int | None) -> None:
    highest = max(images.labels if images.labels is not None else images.classes, default=None)
    if classes is not None and highest is not None and highest >= classes:
        name = f" ({images.classes[highest]})" if highest in images.classes else ""
        raise InputError(
            f"{source} has label {highest}{name}, but the model has {classes} classes; give a class map that names the"
            " model's classes in order, or a model of as many classes."
        )


def _opened(source: DataSource, make: Callable[[], Any]) -> Any:
    package = PACKAGES.get(source.kind)
    if package and importlib.util.find_spec(package) is None:
        raise InputError(f"{source.dataset} needs the package {package}; install it with pip install {package}.")
    try:
        with quick_hub() if package == "datasets" and not _is_local(source) else nullcontext():
            return make()
    except Exception as error:  # each of these libraries fails in its own ways, all of them for want of data
        if "num_samples" in str(error):  # timm's word for a limit
            raise InputError(f"{source} does not say how many images it has; give a limit.") from error
        raise InputError(f"{source} cannot be opened: {_sentence(error)}.") from error


def _is_local(source: DataSource) -> bool:
    return Path((source.dataset or "").partition("/")[2]).exists()


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0].rstrip(".")[:300]
