"""Safetensors files that may come from anywhere, and masks of one bit per weight.

A mask is packed in row-major order of the weight's own shape, eight weights to a byte, the first in the highest bit
(`np.packbits`); the last byte is filled up with zeros.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .errors import InputError


def pack_mask(mask: torch.Tensor) -> torch.Tensor:
    """Eight weights to a byte, row-major, the first in the highest bit; the last byte is filled with zeros."""
    return torch.from_numpy(np.packbits(mask.detach().cpu().contiguous().numpy().reshape(-1)))


def unpack_mask(packed: torch.Tensor, shape: Any) -> torch.Tensor:
    """The boolean tensor of `shape` that `pack_mask` packed.

    Raises:
        InputError: when bytes and shape do not fit.
    """
    if not isinstance(shape, list | tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise InputError(f"the shape {shape!r:.80} is not a list of sizes.")
    if packed.dtype != torch.uint8 or packed.dim() != 1:
        raise InputError(f"a packed mask is one row of uint8, not {packed.dim()}-d {packed.dtype}.")
    size = math.prod(shape)
    if packed.numel() != -(-size // 8):
        raise InputError(f"{packed.numel()} bytes cannot be a mask of shape {list(shape)}.")
    bits = np.unpackbits(packed.numpy())
    if bits[size:].any():
        raise InputError("bits after the last weight are set.")
    return torch.from_numpy(bits[:size].astype(bool)).reshape(tuple(shape))


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a safetensors file; InputError when it is missing or damaged."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def read_metadata(path: Path) -> dict[str, str]:
    """The text in the header of a safetensors file; InputError when it is missing or damaged."""
    with _opened(path) as file:
        return file.metadata() or {}


def describe_file(path: Path) -> dict[str, Any]:
    """Size and SHA-256, as the manifest keeps them; InputError when there is no such file."""
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path, header: dict[str, str]) -> None:
    """Write a safetensors file; what the operating system refuses is an OSError, as with any other file."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata=header)
        path.chmod(mode)  # safetensors lets nobody else read what it writes
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), str(error)) from error  # so that a full disk is told as such


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, AttributeError) as error:  # AttributeError: a dtype torch has no name for
        raise InputError(f"{path} is damaged: {error}.") from error
