"""Run directories: a pruned model that opens in plain timm, its masks, and a manifest that can be checked.

    model.safetensors   the whole state dict, zeros and all      config.json     what timm's `local-dir:` reads
    masks.safetensors   one bit per weight                       secateur.json   how it was made, counts, hashes

A model of transformers gets the config.json of transformers, and preprocessor_config.json where it was loaded with one.
Nothing is ever pickled, and nothing read is trusted.
"""

import json
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save as save_tensors
from torch import nn

from .errors import InputError, nearest
from .files import check_output, new_folder
from .manifest import (
    EXTRA,
    FILES,
    FORMAT,
    MANIFEST,
    MASKS,
    MODEL,
    described_files,
    is_sealed,
    read_manifest,
    write_manifest,
)
from .models import check_fits
from .patterns import NM, UNSTRUCTURED, kept_by_group, summary
from .strict_json import json_bytes
from .tensor_files import describe_file, pack_mask, read_metadata, read_tensors, unpack_mask, write_tensors
from .timm_config import build, model_name, write_config

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Masks = Mapping[str, torch.Tensor]


class Pruned(Protocol):
    """A result of pruning, which knows its masks, and maybe its `patterns` and `left_out` layers."""

    @property
    def masks(self) -> Masks: ...


def save(
    model: nn.Module,
    masks: Masks | Pruned,
    folder: str | Path,
    manifest: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a run directory; it appears complete or not at all.

    Args:
        masks: weight name → boolean tensor of the weight's shape, True where kept; or an object with such `.masks`,
            whose `.manifest()`, `.patterns` and `.left_out`, if there are any, go into the manifest too.
        manifest: how the model was made (method, options, data, seed, ...); kept under "run" in secateur.json.
        overwrite: replace a folder that secateur wrote.
    Raises:
        InputError: when `folder` cannot be written, or a mask and its weight disagree.

    >>> from secateur import load_model, prune_
    >>> model = load_model("bundled")
    >>> save(model, prune_(model, None, "magnitude"), "pruned")
    >>> sorted(file.name for file in Path("pruned").iterdir())
    ['config.json', 'masks.safetensors', 'model.safetensors', 'secateur.json']
    """
    check_output(folder, overwrite)
    run = {**getattr(masks, "manifest", dict)(), **(manifest or {})}
    kept: Masks = masks if isinstance(masks, Mapping) else masks.masks
    kept = {name: mask.detach().cpu() for name, mask in kept.items()}
    state = state_of(model)
    patterns, left_out = getattr(masks, "patterns", {}), getattr(masks, "left_out", {})
    layers = [_layer(n, mask, state) | _pattern(n, mask, patterns, left_out) for n, mask in kept.items()]
    json_bytes(run)  # refuses what JSON cannot say before anything is written
    needed = sum(t.numel() * t.element_size() for t in state.values()) + sum(m.numel() // 8 for m in kept.values())
    with new_folder(folder, overwrite, needed) as new:
        write_tensors(state, new / MODEL, {"format": "pt"})
        packed, shapes = _packed(kept)
        write_tensors(packed, new / MASKS, shapes)
        kind = write_config(model, new)
        libraries = ("secateur", "torch", "transformers" if kind == "transformers" else "timm")
        zeros, total = (sum(layer[key] for layer in layers) for key in ("zeros", "total"))
        record = {
            "format": FORMAT,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "model": {
                "kind": kind,
                "name": model_name(model),
                "parameters": sum(p.numel() for p in model.parameters()),
            },
            "pattern": summary(layers),
            "zeros": zeros,
            "total": total,
            "sparsity": zeros / total if total else 0.0,
            "layers": layers,
            "run": run,
            "versions": {n: _version(n) for n in libraries} | {"python": platform.python_version()},
            "files": {name: describe_file(new / name) for name in (*FILES, *EXTRA) if (new / name).is_file()},
        }
        write_manifest(new, record)


def load(folder: str | Path, model: nn.Module | None = None) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The model of a run directory, in evaluation mode and the dtypes it was saved in, and its masks.

    Args:
        model: gets the weights, strictly; needed when the saved model is neither one of timm's nor of transformers.
    Raises:
        InputError: when a file is missing, damaged or not the one that was saved, or does not fit `model`.

    >>> from secateur import load_model, prune_
    >>> model = load_model("bundled")
    >>> save(model, prune_(model, None, "magnitude", 0.75), "pruned")
    >>> again, masks = load("pruned")
    >>> int(sum((~mask).sum() for mask in masks.values()))
    884736
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if not is_sealed(folder):
        raise InputError(f"{folder / MANIFEST} was changed after it was written: its own SHA-256 differs.")
    for name in described_files(manifest):
        if describe_file(folder / name) != manifest["files"][name]:
            raise InputError(f"{folder / name} is not the file that was saved: its size or SHA-256 differs.")
    state, masks = read_tensors(folder / MODEL), load_masks(folder)
    for name, mask in masks.items():
        _layer(name, mask, state)
    model = build(folder) if model is None else model
    _fill_(model, state, folder / MODEL)
    return model.eval(), masks


def masks_file(masks: Masks) -> bytes:
    """What masks.safetensors holds: the masks, eight weights to a byte, and their shapes."""
    packed, shapes = _packed(masks)
    return save_tensors(packed, metadata=shapes)


def _packed(masks: Masks) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Eight weights to a byte, and what the file's header says of their shapes."""
    shapes = {name: list(mask.shape) for name, mask in masks.items()}
    return {name: pack_mask(mask) for name, mask in masks.items()}, {"format": "pt", "shapes": json.dumps(shapes)}


def load_masks(folder: str | Path) -> dict[str, torch.Tensor]:
    """Weight name → boolean tensor of the weight's shape, True where kept.

    Raises:
        InputError: when masks.safetensors is missing or damaged.
    """
    path = Path(folder) / MASKS
    packed = read_tensors(path)
    try:
        shapes = json.loads(read_metadata(path).get("shapes", ""))
    except (ValueError, RecursionError):
        raise InputError(f"{path}: its metadata has no table of shapes.") from None
    if not isinstance(shapes, dict) or set(shapes) != set(packed):
        raise InputError(f"{path}: the table of shapes and the masks do not name the same layers.")
    masks = {}
    for name, shape in shapes.items():
        try:
            masks[name] = unpack_mask(packed[name], shape)
        except InputError as error:
            raise InputError(f"{path}, {name}: {error}") from None
    return masks


def _layer(name: str, mask: torch.Tensor, state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The counts of one layer, once mask and weight are known to agree."""
    if name not in state:
        raise InputError(f"There is a mask for {name}, but no such weight.{nearest(name, state)}")
    weight = state[name]
    if mask.dtype != torch.bool or mask.shape != weight.shape:
        raise InputError(
            f"The mask of {name} is {mask.dtype} {list(mask.shape)}; it should be torch.bool {list(weight.shape)}."
        )
    if weight.dtype not in FLOATS:
        raise InputError(f"{name} is {weight.dtype}; a pruned weight is one of {', '.join(map(str, FLOATS))}.")
    if left := int((weight[~mask] != 0).sum()):
        raise InputError(f"{name}: {left} weights that the mask drops are not zero; apply the masks first.")
    zeros = int((weight == 0).sum())
    return {"name": name, "zeros": zeros, "total": weight.numel(), "kept_zeros": zeros - int((~mask).sum())}


def _pattern(name: str, mask: torch.Tensor, patterns: Mapping[str, NM], left_out: Mapping[str, str]) -> dict[str, str]:
    """What the manifest says of a layer's pattern, once the mask is known to hold it."""
    pattern = patterns.get(name)
    if pattern and (broken := int((kept_by_group(mask, pattern) > pattern.keep).sum())):
        raise InputError(f"{name}: the mask breaks {pattern} in {broken} groups; save it without that pattern.")
    found = {"pattern": str(pattern) if pattern else UNSTRUCTURED}
    return found | ({"left_out": left_out[name]} if name in left_out else {})


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict on the CPU; safetensors has no shared memory, so a tied weight is written under each name."""
    state, seen = {}, set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
            raise InputError(f"{name} is no tensor with data, so it cannot be saved.")
        copy = tensor.detach().cpu().contiguous()
        shared = copy.untyped_storage().data_ptr() in seen or copy.untyped_storage().nbytes() != copy.nbytes
        state[name] = copy.clone() if shared else copy
        seen.add(state[name].untyped_storage().data_ptr())
    return state


def _fill_(model: nn.Module, state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Copy the tensors in, each in the dtype it was saved in, after checking that all of them fit."""
    check_fits(model, state, str(path))
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.data = tensor.data.to(state[name].dtype)
    model.load_state_dict(dict(state), strict=True)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from a source tree
        return None
