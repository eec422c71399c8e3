"""Load a model by name: the bundled one, any of timm's or transformers', of a hub or a folder; weights of safetensors.

Nothing here unpickles a local file. What the other steps ask a model about (input shape, classes) stands here too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models import is_model, list_pretrained, split_model_name_tag
from torch import nn

from . import hf_models
from .bundled import MODEL_FOLDER
from .errors import InputError, check_whole, nearest
from .hf_images import image_shape
from .hub import quick_hub


def load_model(
    name: str,
    pretrained: bool = True,
    checkpoint: str | Path | None = None,
    num_classes: int | None = None,
    drop_path: float = 0.0,
) -> nn.Module:
    """The model in evaluation mode, with finite weights.

    Args:
        name: `bundled`, a timm name with or without tag, `hf-hub:owner/model` (timm's) or `hf:owner/model`
            (transformers'), `local-dir:folder`, or a folder that holds config.json and model.safetensors, as the ones
            secateur, timm and transformers write.
        pretrained: load the weights that belong to the name; without them the weights are random.
        checkpoint: a .safetensors file to load instead; its names and shapes must be exactly the model's.
        num_classes: size of the classifier; other than the pretrained one means a fresh classifier.
        drop_path: rate of stochastic depth in training, for the models of timm that have it.
    Raises:
        InputError: unknown name, missing or broken files, weights that do not fit or are not finite, no download.

    >>> load_model("bundled").num_classes
    10
    """
    if checkpoint is not None:
        _check_suffix(Path(checkpoint))
    if num_classes is not None:
        check_whole(num_classes=num_classes)
    needs_weights = pretrained and checkpoint is None
    changes: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if (place := hf_models.place_of(name)) is not None:
        if drop_path:
            raise InputError(f"{name} is a model of transformers; its stochastic depth stands in its configuration.")
        model = hf_models.create(place, needs_weights, num_classes)
    else:
        model = _create_with_depth(_timm_name(name, needs_weights), needs_weights, changes, drop_path)
    if checkpoint is not None:
        load_checkpoint_(model, checkpoint)
    check_finite(model)
    return model.eval()


def load_checkpoint_(model: nn.Module, checkpoint: str | Path) -> None:
    """Replace every parameter and buffer by those of a .safetensors file of the same names and shapes."""
    path = Path(checkpoint)
    _check_suffix(path)
    if not path.is_file():
        raise InputError(f"There is no checkpoint {path}; give the path of a .safetensors file.")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"The checkpoint {path} cannot be read: {error}; copy or download it again.") from None
    check_fits(model, weights, f"The checkpoint {path}")
    model.load_state_dict(weights)


def check_fits(model: nn.Module, weights: Mapping[str, torch.Tensor], file: str) -> None:
    """Raise InputError unless the names and shapes of `weights`, which stand in `file`, are the model's."""
    own = model.state_dict()
    problems = [f"{n} is missing" for n in own if n not in weights]
    problems += [f"{n} is not in the model" for n in weights if n not in own]
    problems += [
        f"{n} has shape {tuple(weights[n].shape)}, the model's has {tuple(tensor.shape)}"
        for n, tensor in own.items()
        if n in weights and weights[n].shape != tensor.shape
    ]
    if problems:
        raise InputError(
            f"{file} does not fit {type(model).__name__}: {problems[0]}"
            f"{f' (and {len(problems) - 1} more)' if problems[1:] else ''};"
            " name the architecture and the number of classes that it was saved from."
        )


def check_finite(model: nn.Module) -> None:
    """Raise an InputError that names the first parameter or buffer holding NaN or infinity."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            bad = int((~torch.isfinite(tensor)).sum())
            raise InputError(
                f"{bad} of the {tensor.numel()} values of {name} are NaN or infinite; load intact weights."
            )


def input_shape(model: nn.Module) -> tuple[int, int, int]:
    """(channels, height, width) of the images the model was built for."""
    config = getattr(model, "pretrained_cfg", None) or {}
    channels, height, width = config.get("input_size") or image_shape(model) or (3, 224, 224)
    stem = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    if stem is not None and stem.in_channels in (1, 3, 4):  # the config is that of the weights, the stem is the model's
        channels = stem.in_channels
    built_for = getattr(getattr(model, "patch_embed", None), "img_size", None)
    height, width = built_for or (height, width)
    return channels, height, width


def class_count(model: nn.Module) -> int | None:
    """How many classes the model tells apart, where it says so (timm and transformers models do)."""
    count = getattr(model, "num_classes", None) or getattr(getattr(model, "config", None), "num_labels", None)
    return int(count) if count else None


def describe_model(model: nn.Module) -> str:
    """One line, such as "VisionTransformer, 1.2 M parameters, 1×28×28 pixels, 10 classes"."""
    parameters = sum(p.numel() for p in model.parameters())
    size = f"{parameters / 1e6:.1f} M" if parameters >= 1e5 else f"{parameters}"
    pixels = "×".join(map(str, input_shape(model)))
    return f"{type(model).__name__}, {size} parameters, {pixels} pixels, {class_count(model) or 'unknown'} classes"


def _check_suffix(path: Path) -> None:
    if path.suffix != ".safetensors":
        raise InputError(
            f"The checkpoint {path} is no .safetensors file, and pickles are not opened; convert it where you trust it:"
            f' safetensors.torch.save_file(torch.load("{path.name}", weights_only=True), "{path.stem}.safetensors").'
        )


def _timm_name(name: str, needs_weights: bool) -> str:
    """The name under which timm creates the model, checked as far as that goes without building it."""
    if name == "bundled":
        return f"local-dir:{MODEL_FOLDER}"
    if name.startswith("hf-hub:"):
        return name
    folder = Path(name.removeprefix("local-dir:"))
    architecture, tag = split_model_name_tag(name)
    is_folder = bool(name) and folder.is_dir() and ((folder / "config.json").exists() or not is_model(architecture))
    if name.startswith("local-dir:") or is_folder:
        _check_folder(folder, needs_weights)
        return f"local-dir:{folder}"
    if folder.is_file() and not is_model(architecture):
        raise InputError(f"{name} is a file; name its architecture, or its folder, and give the file as checkpoint.")
    if not name or any(c in name for c in "/\\:"):
        raise InputError(
            f"There is no model folder {name!r}; give a folder, a timm name, hf:owner/name or hf-hub:owner/model."
        )
    if not is_model(architecture):
        raise InputError(f"timm has no model {name!r}.{nearest(architecture, ['bundled', *timm.list_models()])}")
    known = [n for n in list_pretrained(f"{architecture}.*") if n.startswith(f"{architecture}.")]
    if tag and name not in known:
        raise InputError(f"timm has no weights {tag!r} of {architecture}; it has {', '.join(known) or 'none'}.")
    return name


def _check_folder(folder: Path, needs_weights: bool) -> None:
    if not folder.is_dir():
        raise InputError(f"There is no model folder {folder}.")
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(f"The model folder {folder} has no config.json, which names the architecture.")
    try:
        described = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        described = None
    described = described if isinstance(described, dict) else {}
    architecture = described.get("architecture")
    if "class" in described and architecture is None:  # as timm_config writes it
        raise InputError(
            f"{folder} holds a {described['class']!s:.80}, which timm cannot build; in Python, make that model and fill"
            f" it with secateur.load({str(folder)!r}, model)."
        )
    if not isinstance(architecture, str):
        raise InputError(f'{config} is no JSON with an entry "architecture", as timm\'s local-dir wants.')
    if not is_model(architecture):
        raise InputError(
            f"{config} names {architecture!r}, no model of timm.{nearest(architecture, timm.list_models())}"
        )
    if needs_weights and not (folder / "model.safetensors").is_file():
        raise InputError(
            f"The model folder {folder} has no model.safetensors; convert other formats to it, or give a checkpoint."
        )


def _create_with_depth(name: str, pretrained: bool, changes: dict[str, Any], drop_path: float) -> nn.Module:
    """A model of timm, with stochastic depth where its rate is not 0."""
    try:
        return _create(name, pretrained, changes | ({"drop_path_rate": drop_path} if drop_path else {}))
    except TypeError as error:
        if "drop_path_rate" not in str(error):
            raise
        raise InputError(f"{name} has no stochastic depth; set its rate, drop_path, to 0.") from None


def _create(name: str, pretrained: bool, changes: dict[str, Any]) -> nn.Module:
    if name.startswith("local-dir:"):
        try:
            return timm.create_model(name, pretrained=pretrained, **changes)
        except Exception as error:  # what config.json says reaches any line of the architecture
            folder, reason = name.removeprefix("local-dir:"), " ".join(str(error).split()).rstrip(".")
            raise InputError(
                f"The weights and config.json in {folder} do not make a model: {reason[:300] or type(error).__name__}."
            ) from None
    if not pretrained and not name.startswith("hf-hub:"):
        return timm.create_model(name, pretrained=False, **changes)
    try:
        with quick_hub():
            return timm.create_model(name, pretrained=pretrained, **changes)
    except (OSError, RuntimeError, ValueError) as error:  # hub errors are OSErrors; RuntimeError: no weights exist
        reason = " ".join(str(error).split()).split(". ")[0]
        raise InputError(
            f"The weights of {name} cannot be had ({reason}); give a checkpoint or a model folder,"
            " or start without pretrained weights (--no-pretrained)."
        ) from None
