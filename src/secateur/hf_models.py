"""Models of transformers: classifiers of images and detectors, of the hub (`hf:owner/name`) or of a folder of theirs.

Weights come from safetensors only, and code that lies beside a model is not run. transformers is imported on use. A
model keeps the image processor it was loaded with as its `image_processor`.
"""

import copy
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import InputError, require
from .hub import quick_hub

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")  # in one file, or in several
CLASSES = {  # ending of an architecture's name → the class of transformers that loads it
    "ForImageClassification": "AutoModelForImageClassification",
    "ForImageClassificationWithTeacher": "AutoModelForImageClassification",
    "ForObjectDetection": "AutoModelForObjectDetection",
}


def is_transformers(model: nn.Module) -> bool:
    """Whether transformers made it."""
    return any(
        (c.__module__, c.__name__) == ("transformers.modeling_utils", "PreTrainedModel") for c in type(model).mro()
    )


def is_detector(model: nn.Module) -> bool:
    """Whether it finds objects and gives them boxes."""
    return is_transformers(model) and type(model).__name__.endswith("ForObjectDetection")


def place_of(name: str) -> str | None:
    """`owner/name` of the hub, or the folder, that a model's name means; None where it is none of transformers'."""
    if name.startswith("hf:"):
        place = name.removeprefix("hf:")
        if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", place):
            raise InputError(f"{name!r} is no model of the hub; give hf:owner/name, or a folder.")
        return place
    folder = name.removeprefix("local-dir:")
    return folder if describes_transformers(_read_config(Path(folder))) else None


def describes_transformers(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of transformers."""
    return "model_type" in config or "architectures" in config


def create(place: str, pretrained: bool = True, num_classes: int | None = None) -> nn.Module:
    """The model of a folder or of the hub.

    Raises:
        InputError: nothing there, pickled weights alone, weights that do not fit, or neither classifier nor detector.
    """
    folder = Path(place) if Path(place).is_dir() else None
    require({"transformers": "transformers"}, "transformers", f"The model {place}")
    if folder is not None and pretrained and not any((folder / name).is_file() for name in WEIGHTS):
        raise InputError(
            f"The model folder {folder} has no model.safetensors, and pickled weights are not opened; convert them"
            " where you trust them, with save_pretrained of transformers, or give a checkpoint."
        )
    try:
        with _quietly(), quick_hub() if folder is None else nullcontext():
            model = _created(place, pretrained, num_classes)
            if folder is None or (folder / PREPROCESSOR).is_file():
                model.image_processor = _image_processor(place, needed=folder is not None)
    except InputError:
        raise
    except Exception as error:  # what config.json says reaches any line of the architecture; the hub fails in many ways
        raise InputError(_failure(place, folder, error)) from None
    return model


def _created(place: str, pretrained: bool, num_classes: int | None) -> nn.Module:
    import transformers

    changes = {} if num_classes is None else {"num_labels": num_classes}
    config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False, **changes)
    load = getattr(transformers, _loading_class(place, config.architectures))
    if not pretrained:
        return load.from_config(config, trust_remote_code=False)
    model, found = load.from_pretrained(
        place, config=config, use_safetensors=True, trust_remote_code=False, output_loading_info=True,
        ignore_mismatched_sizes=num_classes is not None,
    )  # fmt: skip
    fresh = {entry[0] if isinstance(entry, tuple) else entry for entry in found["mismatched_keys"]}
    missing = sorted(set(found["missing_keys"]) - fresh)
    if missing:
        more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
        raise InputError(
            f"The weights of {place} lack {missing[0]}{more}; load the weights this architecture was saved with."
        )
    return model


def _loading_class(place: str, architectures: list[str] | None) -> str:
    name = (architectures or [""])[0]
    for ending, loading in CLASSES.items():
        if name.endswith(ending):
            return loading
    raise InputError(
        f"{place} holds {f'a {name}' if name else 'no architecture that config.json names'}; give a model whose"
        f" architecture ends in {', '.join(CLASSES)}."
    )


def _image_processor(place: str, needed: bool) -> Any:
    import transformers

    try:
        return transformers.AutoImageProcessor.from_pretrained(place, trust_remote_code=False)
    except OSError:  # the hub has none
        if needed:
            raise
        return None


def write_config(model: nn.Module, folder: Path) -> bool:
    """config.json (and preprocessor_config.json) as transformers writes them; False where they would not rebuild it."""
    kind: Any = getattr(importlib.import_module("transformers"), type(model).__name__, None)
    if type(model) is not kind:  # a class of the user's own
        return False
    config: Any = copy.deepcopy(model.config)
    config.architectures, config.dtype = [kind.__name__], next(model.parameters()).dtype
    with _quietly():
        with torch.device("meta"):
            twin = kind(config)
        shapes, others = ({n: t.shape for n, t in m.state_dict().items()} for m in (model, twin))
        if shapes != others:
            return False
        config.save_pretrained(folder)
        if (processor := getattr(model, "image_processor", None)) is not None:
            processor.save_pretrained(folder)
    return True


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        described = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return described if isinstance(described, dict) else {}


def _failure(place: str, folder: Path | None, error: Exception) -> str:
    reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")[:300] or type(error).__name__
    if folder is not None:
        return f"The files in {folder} do not make a model: {reason}."
    return (
        f"The weights of hf:{place} cannot be had ({reason}); give a model folder, or a model with model.safetensors:"
        " pickled weights are not opened."
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without transformers' bars and notes: what matters in them is an error here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
