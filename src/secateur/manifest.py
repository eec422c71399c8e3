"""secateur.json, the manifest of a run directory: read as a stranger's, and sealed with the SHA-256 of its own text."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import InputError
from .files import write_atomically
from .hf_models import PREPROCESSOR
from .strict_json import json_bytes, read_json
from .timm_config import CONFIG

FORMAT = 1
MODEL, MASKS, MANIFEST = "model.safetensors", "masks.safetensors", "secateur.json"
FILES = (MODEL, CONFIG, MASKS)  # those that the manifest describes
EXTRA = (PREPROCESSOR,)  # those that it describes where they are there
NO_SEAL = "0" * 64


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """What secateur.json says, its fields checked for their types.

    Raises:
        InputError: when it is missing, damaged, or of another format.
    """
    path = Path(folder) / MANIFEST
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise InputError(f"{path}: format is {manifest.get('format')!r:.40}, this version reads {FORMAT}.")
    for field, kind in (("layers", list), ("files", dict), ("run", dict), ("zeros", int), ("total", int)):
        if type(manifest.get(field)) is not kind:
            raise InputError(f"{path}: {field} should be of type {kind.__name__}.")
    for i, layer in enumerate(manifest["layers"]):
        if not isinstance(layer, dict) or [type(layer.get(k)) for k in ("name", "zeros", "total")] != [str, int, int]:
            raise InputError(f"{path}: layers[{i}] should hold a name, zeros and total.")
        for field in ("pattern", "left_out"):  # of layers that have one
            if not isinstance(layer.get(field, ""), str):
                raise InputError(f"{path}: layers[{i}].{field} should be text.")
    for name in described_files(manifest):
        if not isinstance(manifest["files"].get(name), dict):
            raise InputError(f"{path}: files should describe {name}.")
    return manifest


def described_files(manifest: Mapping[str, Any]) -> list[str]:
    """The names of the files whose size and hash the manifest holds."""
    return [*FILES, *(name for name in EXTRA if name in manifest["files"])]


def is_sealed(folder: str | Path) -> bool:
    """Whether secateur.json is byte for byte what was written."""
    path = Path(folder) / MANIFEST
    seal = str(read_json(path).get("seal"))
    return (
        len(seal) == len(NO_SEAL)
        and seal == hashlib.sha256(path.read_bytes().replace(seal.encode(), NO_SEAL.encode())).hexdigest()
    )


def write_manifest(folder: str | Path, manifest: Mapping[str, Any]) -> None:
    """Write secateur.json, with the SHA-256 of its own text (zeros in the place of the digits) as "seal"."""
    text = json_bytes({**manifest, "seal": NO_SEAL})
    head, tail = text.rsplit(NO_SEAL.encode(), 1)
    write_atomically(Path(folder) / MANIFEST, head + hashlib.sha256(text).hexdigest().encode() + tail)
