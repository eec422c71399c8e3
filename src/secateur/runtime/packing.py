"""Packed matrices: a weight without its zeros, in the order in which the kernels read it (csrc/sparse.h)."""

from typing import Any

import torch
from torch import Tensor

from .. import native

PANEL = 64  # tokens
_WIDTH = 128  # columns of a block: with 64 tokens, 32 KiB that stay in an L1 cache beside the weights passing through


def pack(weight: Tensor, bias: Tensor | None) -> Any:
    """The packed matrix of a weight (rows, columns) and a bias (rows,)."""
    core = native.core()
    given = None if bias is None else _float32(bias)
    return core.PackedMatrix.pack(_float32(weight), given, _WIDTH, True)


def _float32(values: Tensor) -> Any:
    return values.detach().to("cpu", torch.float32).contiguous().numpy()
