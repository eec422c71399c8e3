"""The weights as one safetensors file: dense, or with a bitmask for every tensor that gets smaller by it."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor, nn

from ..bitmask import PARTS, VALUES, compress, compressed_bytes, decompress
from ..checkpoint import state_of
from ..errors import InputError
from ..files import write_atomically
from ..tensor_files import read_tensors

ENDINGS = tuple(f".{part}" for part in PARTS)


def export_dense(model: nn.Module, file: str | Path) -> int:
    """Write the state dict, zeros and all, for anything that reads safetensors; returns the bytes.

    >>> from secateur import load_model
    >>> export_dense(load_model("bundled"), "dense.safetensors") > 4 * 1_200_000
    True
    """
    return _write(state_of(model), file, {"format": "pt"})


def export_sparse(model: nn.Module, file: str | Path) -> int:
    """Write the state dict with the zeros left out where that is smaller; returns the bytes.

    >>> from secateur import load_model, prune_
    >>> model = load_model("bundled")
    >>> result = prune_(model, None, "magnitude", sparsity=0.9)
    >>> export_sparse(model, "sparse.safetensors") < export_dense(model, "dense.safetensors") / 5
    True
    """
    return _write(compressed_state(state_of(model)), file, {"format": "pt", "sparsity": "bitmask"})


def load_sparse(file: str | Path) -> dict[str, Tensor]:
    """The state dict of a file that `export_sparse` wrote, bit for bit; a dense file is read as it is.

    Raises:
        InputError: when the file is missing or damaged, or the parts of a tensor do not fit one another.

    >>> from secateur import load_model
    >>> model = load_model("bundled")
    >>> size = export_sparse(model, "model.safetensors")
    >>> model.load_state_dict(load_sparse("model.safetensors"))
    <All keys matched successfully>
    """
    stored = read_tensors(Path(file))
    try:
        return restored_state(stored)
    except InputError as error:
        raise InputError(f"{file}, {error}") from None


def restored_state(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict whose `compressed_state` these tensors are; InputError where they do not fit one another."""
    parts: dict[str, dict[str, Tensor]] = {}
    state = {}
    for name, tensor in stored.items():
        if name.endswith(ENDINGS):
            whole, _, part = name.rpartition(".")
            parts.setdefault(whole, {})[part] = tensor
        else:
            state[name] = tensor
    for name, found in parts.items():
        if missing := [part for part in PARTS if part not in found]:
            raise InputError(f"{name}: {name}.{missing[0]} is missing.")
        if name in state:
            raise InputError(f"{name}: it is stored twice, dense and with a bitmask.")
        try:
            state[name] = decompress(found)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    return state


def compressed_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state dict, those with enough zeros as four parts each."""
    if taken := [name for name in state if name.endswith(ENDINGS)]:
        raise InputError(f"{taken[0]} is named like a part of a compressed tensor; rename it, or export dense.")
    stored: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if _gains(tensor):
            stored |= {f"{name}.{part}": value for part, value in compress(tensor).items()}
        else:
            stored[name] = tensor
    return stored


def _gains(tensor: Tensor) -> bool:
    large = tensor.dim() >= 2 and tensor.numel() > 0 and tensor.dtype in VALUES
    return large and compressed_bytes(tensor) < tensor.nbytes


def _write(tensors: Mapping[str, Tensor], file: str | Path, header: dict[str, str]) -> int:
    data = safetensors.torch.save(dict(tensors), metadata=header)
    write_atomically(file, data)
    return len(data)
