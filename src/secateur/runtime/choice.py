"""Sparse or dense, layer by layer: both are run on inputs of the size the layer gets, and the faster one stays."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .modules import NativeMaxPool2d, SparseConv2d, SparseLinear

_ROUNDS = 3
DENSEST = 0.75  # with fewer zeros a layer counts as dense


def can_be_sparse(layer: nn.Module, densest: float = DENSEST) -> bool:
    """Whether a kernel can stand for a layer: linear or convolution in one group, float32, enough zeros."""
    if type(layer) is nn.Conv2d:
        known = layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same"
    else:
        known = type(layer) is nn.Linear
    if not known:
        return False
    weight: Any = layer.weight
    plain = weight.dtype == torch.float32 and weight.device.type == "cpu" and not weight.is_meta
    unhooked = not layer._forward_hooks and not layer._forward_pre_hooks
    return plain and unhooked and int(weight.count_nonzero()) <= densest * weight.numel()


def can_pool(layer: nn.Module) -> bool:
    """Whether the native pooling can stand for a layer."""
    if type(layer) is not nn.MaxPool2d or layer.dilation != 1 or layer.ceil_mode or layer.return_indices:
        return False
    return all(isinstance(number, int) for number in (layer.kernel_size, layer.stride, layer.padding))


def sparse_layer(layer: nn.Module, activation: str = "none") -> nn.Module:
    if isinstance(layer, nn.MaxPool2d):
        return NativeMaxPool2d(*map(int, (layer.kernel_size, layer.stride, layer.padding)))  # type: ignore[arg-type]
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
