"""The weight's gradients of one use of a layer, for each sample or slice of samples, from its inputs and the gradient
of its outputs.

A linear layer's gradient is Yᵀ X, with X its inputs (positions, in) and Y the gradients of its outputs (positions,
out); a convolution is the same after unfolding. Cost: 2·positions·weights operations a sample.
"""

import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame, pad_same
from torch import Tensor, nn

from ..layers import PrunableWeight

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, Conv2dSame)


def slice_gradients(
    module: nn.Module, inputs: Tensor, gradient: Tensor, samples: int, size: int, slices: list[slice]
) -> Tensor:
    """(slices, out, in): the weight's gradients of one use of `module`, summed over each slice of the samples."""
    if type(module) is nn.Linear:
        x = inputs.reshape(samples, 1, -1, inputs.shape[-1])  # (samples, groups, positions, in)
        y = gradient.reshape(samples, 1, -1, gradient.shape[-1])  # (samples, groups, positions, out)
    elif isinstance(module, nn.Conv1d | nn.Conv2d) and type(module) in CONVOLUTIONS:
        x, y = unfolded(module, inputs, gradient)
        if len(x) != samples:  # several images of one sample are more positions of one
            x, y = (v.unflatten(0, (samples, -1)).transpose(1, 2).flatten(2, 3) for v in (x, y))
    else:
        each = _gradients_of_module(module, inputs, gradient, samples)
        return each if size == 1 else torch.stack([each[s].sum(0) for s in slices])
    x = x.to(y.dtype)
    if size > 1:  # the samples of a slice are more positions of one
        merged = [(x[s].transpose(0, 1).flatten(1, 2), y[s].transpose(0, 1).flatten(1, 2)) for s in slices]
        return torch.stack([(y.transpose(1, 2) @ x).flatten(0, 1) for x, y in merged])
    return (y.transpose(2, 3) @ x).flatten(1, 2)


def unfolded(module: nn.Conv1d | nn.Conv2d, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The operands of a convolution: x (samples, groups, positions, kh·kw·in/groups), y (…, out/groups).

    Of a 1×1 convolution with stride 1 both are views; else x is copied once.
    """
    kernel, stride, dilation = ((1, *v)[-2:] for v in (module.kernel_size, module.stride, module.dilation))
    padding = module._reversed_padding_repeated_twice
    if isinstance(module, Conv2dSame):
        inputs = pad_same(inputs, list(kernel), list(stride), list(dilation))
    elif any(padding):
        inputs = F.pad(inputs, padding, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    if isinstance(module, nn.Conv1d):
        inputs, gradient = inputs.unsqueeze(2), gradient.unsqueeze(2)  # one row high
    for axis, (length, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True), 2):
        inputs = inputs.unfold(axis, gap * (length - 1) + 1, step)[..., ::gap]
    x = inputs.unflatten(1, (module.groups, -1))  # (samples, groups, in/groups, height, width, kh, kw)
    x = x.permute(0, 1, 5, 6, 2, 3, 4).flatten(2, 4).flatten(3)  # input channels last, as in PrunableWeight.matrix
    y = gradient.reshape(*x.shape[:2], -1, x.shape[3])
    return x.transpose(2, 3), y.transpose(2, 3)


def _gradients_of_module(module: nn.Module, inputs: Tensor, gradient: Tensor, samples: int) -> Tensor:
    """(samples, out, in) for a module that is linear in no way known here: it is run again, sample by sample."""
    assert isinstance(module.weight, nn.Parameter)
    matrix = PrunableWeight("", module.weight, (module,)).matrix
    inputs, gradient = (
        inputs.reshape(samples, -1, *inputs.shape[1:]),
        gradient.reshape(samples, -1, *gradient.shape[1:]),
    )
    weight = module.weight.detach().requires_grad_()
    with torch.enable_grad():
        each = [
            torch.autograd.grad(torch.func.functional_call(module, {"weight": weight}, (x,)), weight, y)[0]
            for x, y in zip(inputs, gradient, strict=True)
        ]
    return torch.stack([matrix(g) for g in each])
