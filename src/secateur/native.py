"""The compiled kernels of csrc/ on torch tensors: each works on one Fisher block at a time, in cache.

Every function here has a plain torch twin elsewhere; this module says whether the extension is there (`available`,
`describe`) and whether given tensors can use it (`usable`). Tensors are shared, not copied, unless they are strided.
Only the lower triangles of Fisher blocks are read. `SECATEUR_NATIVE=0` switches the extension off, and
`SECATEUR_ISA=portable|avx2|avx512|avx512bf16` chooses its instruction set.
"""

import functools
import importlib
import logging
import math
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .triangles import packed_numbers, side

log = logging.getLogger(__name__)
_FLOATS = (torch.float32, torch.float64)


@functools.cache
def _load() -> tuple[ModuleType | None, str | None]:
    """The extension, or None and the reason."""
    if os.environ.get("SECATEUR_NATIVE") == "0":
        return None, "switched off by SECATEUR_NATIVE=0"
    try:
        return importlib.import_module("secateur._core"), None
    except ModuleNotFoundError:
        reason = "not built; reinstall secateur with a C++ compiler on the machine"
        log.warning("The compiled kernels are %s. All works without them, many times slower.", reason)
        return None, reason
    except ImportError as error:
        return None, str(error)


def available() -> bool:
    """Whether the compiled kernels can be used in this process."""
    return _load()[0] is not None


def describe() -> dict[str, Any]:
    """What is known about the extension: present, isa in use, isas supported, and the reason when it is absent."""
    core, reason = _load()
    return {
        "present": core is not None,
        "isa": core.isa() if core else None,
        "isas": core.isas() if core else [],
        "reason": reason,
    }


def core() -> ModuleType:
    """The extension itself, for the sparse runtime; RuntimeError where it is absent."""
    return _core()


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels are there and can take these: on the CPU, all floating ones float32 or all float64."""
    floating = {t.dtype for t in tensors if t.dtype != torch.bool}
    on_cpu = all(t.device.type == "cpu" and t.layout == torch.strided for t in tensors)
    return available() and on_cpu and len(floating) <= 1 and floating <= set(_FLOATS)


def can_accumulate(fisher: Tensor, gradients: Tensor) -> bool:
    """Whether `accumulate` is there and takes these."""
    on_cpu = fisher.device.type == gradients.device.type == "cpu"
    types = fisher.dtype == torch.float32 and gradients.dtype in (torch.float32, torch.bfloat16)
    return available() and on_cpu and types


def cap_scores(
    weight: Tensor, keep: Tensor, fisher: Tensor, damping: float, group: int = 0, most: int = 0
) -> tuple[Tensor, Tensor]:
    """Loss increase when each kept weight leaves, in CAP's greedy order; dropped weights score -inf.

    Args:
        weight: (blocks, size). Dropped weights that are not zero yet are removed first, jointly.
        keep: (blocks, size), True where a weight can still be removed.
        fisher: (blocks, size, size), of which the lower triangles are read, or packed (see triangles.py).
        damping: λ, added to the diagonals.
        group, most: of every `group` neighbours at most `most` leave, those that `keep` has dropped among them; what
            never leaves scores inf. 0: no such bound.

    Returns:
        scores (blocks, size), and the λ (blocks,) float64 it took to factor each block: NaN, with a block of NaN,
        where the numbers were not finite.
    """
    fits = 0 <= most <= group and not (group and keep.shape[-1] % group)
    _require(fits, f"groups of {group}, of which {most} may leave, that fill its blocks", keep=keep)
    return _solve("cap_scores", weight, keep, fisher, damping, group, most)


def inverse_diagonal(keep: Tensor, fisher: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """diag((F_KK + λI)⁻¹), zero where dropped, and the λ used; shapes as in `cap_scores`."""
    return _solve("inverse_diagonal", None, keep, fisher, damping)


def solve_kept(rhs: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """(F_KK + λI)⁻¹ rhs_K, zero where dropped, and the λ used; shapes as in `cap_scores`."""
    return _solve("solve_kept", rhs, keep, fisher, damping)


def compensate(weight: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """The joint OBS update w_K = (F_KK + λI)⁻¹ ((F + λI) w)_K, zero where dropped, and the λ used.

    Weights stay as they are, to the last bit, in blocks whose dropped weights are all zero already.
    """
    return _solve("compensate", weight, keep, fisher, damping)


def loss_increase(change: Tensor, fisher: Tensor) -> Tensor:
    """½ δᵀFδ (blocks,) of the changes δ (blocks, size); the Fisher as in `cap_scores`."""
    everything = torch.ones(change.shape, dtype=torch.bool)
    return _solve("loss_increase", change, everything, fisher, 0.0)[0][:, 0].clone()


def accumulate(fisher: Tensor, gradients: Tensor) -> Tensor:
    """Add GᵀG to each block, in place.

    Args:
        fisher: (blocks, size · (size + 1) / 2) float32, packed and contiguous.
        gradients: (samples, weights), float32 or bfloat16; the last block may be longer than what is left for it.
    """
    _require(fisher.dim() == 2 and fisher.dtype == torch.float32, "(blocks, packed) of float32", fisher=fisher)
    _require(fisher.is_contiguous(), "contiguous memory, because it is changed in place", fisher=fisher)
    size = side(fisher.shape[1])
    fits = gradients.dim() == 2 and len(fisher) == -(-gradients.shape[1] // size)
    _require(fits, f"(samples, weights) that fill the blocks of {size}", gradients=gradients, fisher=fisher)
    _require(gradients.dtype in (torch.float32, torch.bfloat16), "float32 or bfloat16", gradients=gradients)
    given = gradients.view(torch.int16) if gradients.dtype == torch.bfloat16 else gradients
    _core(fisher, gradients).accumulate(_array(fisher), size, _array(given), torch.get_num_threads())
    return fisher


def _solve(
    kernel: str, values: Tensor | None, keep: Tensor, fisher: Tensor, damping: float, *more: int
) -> tuple[Tensor, Tensor]:
    """Check, allocate, run: every kernel but `accumulate` is one block of numbers in, one out."""
    inputs = [] if values is None else [values]
    _require(keep.dim() == 2 and keep.dtype == torch.bool, "(blocks, size) of bool", keep=keep)
    size = keep.shape[1]
    fits = fisher.shape in ((*keep.shape, size), (len(keep), packed_numbers(size)))
    _require(fits, "(blocks, size, size), or (blocks, size · (size + 1) / 2)", fisher=fisher, keep=keep)
    _require(fisher.dtype in _FLOATS, "float32 or float64", fisher=fisher)
    for given in inputs:
        _require(given.shape == keep.shape, "one number for each entry of keep", values=given, keep=keep)
        _require(given.dtype == fisher.dtype, "one dtype for numbers and Fisher blocks", values=given, fisher=fisher)
    if not (math.isfinite(damping) and damping >= 0):
        raise ValueError(f"{kernel} needs a finite damping of at least 0, not {damping}.")
    core = _core(*inputs, keep, fisher)
    output = torch.empty(keep.shape, dtype=fisher.dtype)
    used = torch.empty(len(keep), dtype=torch.float64)
    arrays = [_array(t) for t in (*inputs, keep, fisher)]
    getattr(core, kernel)(*arrays, float(damping), *more, _array(output), _array(used), torch.get_num_threads())
    return output, used


def _core(*tensors: Tensor) -> ModuleType:
    core, reason = _load()
    if core is None:
        raise RuntimeError(f"The compiled kernels are not available: {reason}.")
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(f"The compiled kernels work on the CPU; a tensor is on {tensor.device}.")
    return core


def _array(tensor: Tensor) -> Any:
    """The numpy view of a tensor's memory; of a copy, if it is strided."""
    return tensor.detach().contiguous().numpy()


def _require(fits: bool, wanted: str, **tensors: Tensor) -> None:
    if not fits:
        given = ", ".join(f"{name} {tuple(t.shape)} {t.dtype}" for name, t in tensors.items())
        raise ValueError(f"The kernel needs {wanted}; given: {given}.")
