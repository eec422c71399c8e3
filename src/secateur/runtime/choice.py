"""Sparse or dense, layer by layer: both are run on inputs of the size the layer gets, and the faster one stays."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .modules import SparseConv2d, SparseLinear

_ROUNDS = 3
_DENSEST = 0.75  # with fewer zeros nothing is tried


def can_be_sparse(layer: nn.Module) -> bool:
    """Whether a kernel can stand for a layer: linear or convolution in one group, float32, enough zeros."""
    if type(layer) is nn.Conv2d:
        known = layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same"
    else:
        known = type(layer) is nn.Linear
    if not known:
        return False
    weight = layer.weight
    plain = weight.dtype == torch.float32 and weight.device.type == "cpu" and not weight.is_meta
    unhooked = not layer._forward_hooks and not layer._forward_pre_hooks
    return plain and unhooked and weight.count_nonzero() <= _DENSEST * weight.numel()


def sparse_layer(layer: nn.Module, activation: str = "none") -> nn.Module:
    if isinstance(layer, nn.Conv2d):
        return SparseConv2d(layer, activation)
    assert isinstance(layer, nn.Linear)
    return SparseLinear(layer, activation)


def is_faster(sparse: Callable[..., Tensor], dense: Callable[..., Tensor], shapes: list[torch.Size]) -> bool:
    """Whether `sparse` takes less time than `dense` on inputs of these shapes."""
    inputs = [torch.rand(shape) for shape in shapes]
    times: dict[Callable[..., Tensor], list[float]] = {sparse: [], dense: []}
    with torch.no_grad():
        for work in times:
            work(*inputs)
        for _ in range(_ROUNDS):
            for work, taken in times.items():
                start = time.perf_counter()
                work(*inputs)
                taken.append(time.perf_counter() - start)
    return statistics.median(times[sparse]) < statistics.median(times[dense])
