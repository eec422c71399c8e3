"""Compiled models as files: `secateur compile` writes them, `load_compiled` runs them. Nothing is ever pickled.

A vision transformer that runs as one encoder is stored packed, and needs its class no more. Any other of timm's models
is stored as its configuration and its weights without the zeros, and is compiled again when it is loaded, for the
machine it is loaded on.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .checkpoint import state_of
from .errors import InputError
from .export import compressed_state, restored_state
from .hf_models import describes_transformers, is_transformers
from .models import check_finite, check_fits
from .runtime import compile_sparse
from .runtime.container import TYPES, read_container, write_container
from .runtime.encoder_file import describe_encoder, rebuild_encoder
from .runtime.modules import SparseTransformer
from .strict_json import json_bytes, read_json
from .timm_config import CONFIG, build, write_config


def save_compiled(model: nn.Module, file: str | Path, measure: bool = True) -> int:
    """Compile the model and write it to one file; returns the bytes.

    Args:
        model: a model of timm, in float32; it stays unchanged. What `compile_sparse` made of a vision transformer does
            as well.
        measure: as of `compile_sparse`; without it a vision transformer is packed even where that gains nothing.
    Raises:
        InputError: when a file of this kind cannot hold the model, or cannot be written.

    >>> from secateur import load_model
    >>> save_compiled(load_model("bundled"), "bundled.sct") > 0
    True
    """
    if is_transformers(model):
        raise InputError(
            f"A compiled file holds a model of timm, and {type(model).__name__} is one of transformers; use export."
        )
    compiled = model if isinstance(model, SparseTransformer) else compile_sparse(model, measure=measure)
    if isinstance(compiled, SparseTransformer):
        description, arrays = describe_encoder(compiled)
    else:
        description, arrays = _describe(model)
    return write_container(file, description, arrays)


def load_compiled(file: str | Path) -> nn.Module:
    """The module of a file that `secateur compile` or `save_compiled` wrote, in evaluation mode.

    Raises:
        InputError: when the file is missing, damaged or of another version; it names the file and the field.

    >>> import torch
    >>> from secateur import load_model
    >>> model, images = load_model("bundled"), torch.rand(2, 1, 28, 28)
    >>> size = save_compiled(model, "bundled.sct")
    >>> torch.allclose(load_compiled("bundled.sct")(images), model(images), atol=1e-4)
    True
    """
    description, arrays = read_container(file)
    kind = description.get("kind")
    try:
        if kind == "encoder":
            return rebuild_encoder(description, arrays)
        if kind == "timm":
            return compile_sparse(_build(description, arrays, str(file)))
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    raise InputError(f"{file}: kind is {kind!r:.40}, neither encoder nor timm.")


def _describe(model: nn.Module) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """timm's configuration, and the weights without their zeros."""
    with tempfile.TemporaryDirectory(prefix="secateur-") as folder:
        if write_config(model, Path(folder)) != "timm":
            raise InputError(f"timm cannot build a {type(model).__name__} again, so no file can hold it compiled.")
        config = read_json(Path(folder) / CONFIG)
    stored = compressed_state(state_of(model))
    for name, tensor in stored.items():
        if str(tensor.dtype).removeprefix("torch.") not in TYPES:
            raise InputError(f"{name} is {tensor.dtype}, which a compiled file cannot hold; use model.float().")
    return {"kind": "timm", "config": config}, {name: tensor.numpy() for name, tensor in stored.items()}


def _build(description: Mapping[str, Any], arrays: Mapping[str, np.ndarray], file: str) -> nn.Module:
    """The model, every weight of which is known to fit and to be finite."""
    config = description.get("config")
    if not isinstance(config, dict):
        raise InputError("config should be an object.")
    if describes_transformers(config):
        raise InputError("config describes a model of transformers, not one of timm.")
    state = restored_state({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    with tempfile.TemporaryDirectory(prefix="secateur-") as folder:
        (Path(folder) / CONFIG).write_bytes(json_bytes(config))
        model = build(Path(folder))
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
    if not (isinstance(size, list | tuple) and len(size) == 3 and all(type(n) is int and 0 < n <= 4096 for n in size)):
        raise InputError("config.pretrained_cfg.input_size is no list of three sizes.")
    check_fits(model, state, file)
    model.load_state_dict(state)
    check_finite(model)
    return model.eval()
