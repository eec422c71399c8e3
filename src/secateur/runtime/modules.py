"""Modules that run on the native kernels: what `compile_sparse` puts in the place of torch's."""

from typing import Any

import torch
from torch import Tensor, nn

from .. import native
from ..errors import InputError
from .packing import pack
from .vit import Head


class SparseTransformer(nn.Module):
    """A whole vision transformer: images to outputs, in float32 and without gradients."""

    def __init__(self, encoder: Any, head: Head):
        super().__init__()
        self.encoder, self.head, self.image = encoder, head, tuple(encoder.image)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[1:] != self.image:
            wanted = ", ".join(map(str, self.image))
            raise InputError(f"The compiled model takes images (batch, {wanted}), not {tuple(images.shape)}.")
        tokens = torch.empty(len(images), self.head.tokens or self.encoder.tokens, self.encoder.features)
        self.encoder.run(_array(images), tokens.numpy(), torch.get_num_threads())
        return self.head(tokens)


class SparseLinear(nn.Module):
    """nn.Linear, with an activation after it."""

    def __init__(self, layer: nn.Linear, activation: str = "none"):
        super().__init__()
        self.packed, self.activation = pack(layer.weight, layer.bias), activation

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        inputs = _array(x.reshape(-1, x.shape[-1]))
        outputs = torch.empty(len(inputs), self.packed.rows)
        self.packed.linear(inputs, outputs.numpy(), self.activation, torch.get_num_threads())
        return outputs.view(*x.shape[:-1], self.packed.rows)


class SparseConv2d(nn.Module):
    """nn.Conv2d in one group, plus what `added` gives, with an activation after it."""

    def __init__(self, layer: nn.Conv2d, activation: str = "none"):
        super().__init__()
        self.packed, self.activation = pack(layer.weight.flatten(1), layer.bias), activation
        padding = (0, 0) if layer.padding == "valid" else layer.padding
        self.shape = [*layer.kernel_size, *layer.stride, *padding, *layer.dilation]
        self.pointwise = self.shape == [1, 1, 1, 1, 0, 0, 1, 1]

    @torch.no_grad()
    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        height, width = (self._length(x.shape[2 + i], i) for i in (0, 1))
        outputs = torch.empty(len(x), self.packed.rows, height, width)
        given = [None if t is None else t.contiguous() for t in (x, added, outputs)]
        if self.pointwise:  # rows of pixels follow each other, whatever their length
            given = [None if t is None else t.view(*t.shape[:2], 1, -1) for t in given]
        arrays = [None if t is None else _array(t) for t in given]
        self.packed.convolution(self.shape, *arrays, self.activation, torch.get_num_threads())
        return outputs

    def _length(self, size: int, axis: int) -> int:
        kernel, stride, padding, dilation = self.shape[axis::2]
        return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


class NativeMaxPool2d(nn.Module):
    """nn.MaxPool2d over squares."""

    def __init__(self, kernel: int, stride: int, padding: int):
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        height, width = ((size + 2 * self.padding - self.kernel) // self.stride + 1 for size in x.shape[2:])
        outputs = torch.empty(*x.shape[:2], height, width)
        arrays = _array(x.flatten(0, 1)), self.kernel, self.stride, self.padding, outputs.flatten(0, 1).numpy()
        native.core().max_pool(*arrays, torch.get_num_threads())
        return outputs


class InParts(nn.Module):
    """A model that takes a few images at a time: what passes between its layers stays in the last cache."""

    def __init__(self, model: nn.Module, images: int):
        super().__init__()
        self.model, self.images = model, images

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        parts = images.split(self.images)
        return self.model(images) if len(parts) < 2 else torch.cat([self.model(part) for part in parts])


def _array(x: Tensor) -> Any:
    return x.detach().to("cpu", torch.float32).contiguous().numpy()
