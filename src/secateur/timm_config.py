"""config.json of a run directory: what timm's `local-dir:`, or transformers, needs to build the same model again.

They write it; it is tried out at once, on tensors without data, so that a file that builds another model is never left
behind. A model that neither can build gets the name of its class instead.
"""

from pathlib import Path
from typing import Any

import timm
import torch
from timm.models._hub import save_config_for_hf
from torch import nn

from .errors import InputError, nearest
from .files import write_atomically
from .hf_models import create, describes_transformers, is_transformers
from .hf_models import write_config as write_transformers_config
from .strict_json import json_bytes, read_json

CONFIG = "config.json"


def write_config(model: nn.Module, folder: Path) -> str:
    """config.json for timm or transformers where it gives the same model again; otherwise the name of the class."""
    if is_transformers(model) and write_transformers_config(model, folder):
        return "transformers"
    given: list[dict[str, Any] | None] = [None]
    if not hasattr(model, "_model_args"):  # before timm 1.0.31 the arguments are not recorded
        given += [_visible_arguments(model)]
    for arguments in given if _is_timm(model) else ():
        try:
            save_config_for_hf(model, str(folder / CONFIG), model_args=arguments)
        except (ValueError, TypeError):  # an argument that JSON has no word for
            continue
        if _rebuilds(model, folder):
            return "timm"
    write_atomically(folder / CONFIG, json_bytes({"class": model_name(model)}))
    return "module"


def _is_timm(model: nn.Module) -> bool:
    config = getattr(model, "pretrained_cfg", None)
    return isinstance(config, dict) and timm.is_model(config.get("architecture") or "")


def _visible_arguments(model: nn.Module) -> dict[str, Any]:
    """The constructor's arguments that a vision transformer still shows."""
    embed = getattr(model, "patch_embed", None)
    found = getattr(model, "blocks", None)
    blocks = found if isinstance(found, nn.Sequential) else nn.Sequential()
    attention = getattr(blocks[0], "attn", None) if len(blocks) else None
    arguments = {
        "img_size": getattr(embed, "img_size", None),
        "patch_size": getattr(embed, "patch_size", None),
        "embed_dim": getattr(model, "embed_dim", None) if attention is not None else None,
        "depth": len(blocks) if attention is not None else None,
        "num_heads": getattr(attention, "num_heads", None),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _rebuilds(model: nn.Module, folder: Path) -> bool:
    """Whether config.json gives the same tensors, and the same modules where timm did not record the arguments."""
    try:
        with torch.device("meta"):
            twin = timm.create_model(f"local-dir:{folder}", pretrained=False)
    except Exception:  # whatever a constructor raises
        return False
    shapes, others = ({n: t.shape for n, t in m.state_dict().items()} for m in (model, twin))
    return shapes == others and (hasattr(model, "_model_args") or repr(model) == repr(twin))


def build(folder: Path) -> nn.Module:
    """The model that config.json describes, its weights not yet read; InputError when it cannot be built."""
    config = read_json(folder / CONFIG)
    if describes_transformers(config):
        return create(str(folder), pretrained=False)
    architecture = config.get("architecture")
    if not isinstance(architecture, str):
        raise InputError(
            f"{folder} holds a {config.get('class', 'model')!s:.80}, not one of timm's or transformers'; pass the model"
            " to fill."
        )
    if not timm.is_model(architecture):
        raise InputError(
            f"{folder / CONFIG}: timm has no model {architecture!r:.80}.{nearest(architecture, timm.list_models())}"
        )
    try:
        return timm.create_model(f"local-dir:{folder}", pretrained=False)
    except Exception as error:  # whatever a constructor raises when given a stranger's arguments
        raise InputError(f"{folder / CONFIG} does not describe a model that timm can build: {error!s:.200}") from error


def model_name(model: nn.Module) -> str:
    """timm's name of the architecture, or the class with its module."""
    kind = type(model)
    config: Any = getattr(model, "pretrained_cfg", None)
    return str(config["architecture"]) if _is_timm(model) else f"{kind.__module__}.{kind.__qualname__}"
