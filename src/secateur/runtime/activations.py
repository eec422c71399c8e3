"""Activations that the kernels fold into a product, by the modules that mean them."""

import timm.layers
from torch import nn

_NAMES = {
    nn.Identity: "none",
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    timm.layers.Swish: "silu",
    nn.GELU: "gelu",
    timm.layers.GELU: "gelu",
}


def activation_name(module: nn.Module) -> str | None:
    """The kernels' name for an activation, or None where they have none."""
    if isinstance(module, nn.GELU) and module.approximate != "none":
        return None
    return _NAMES.get(type(module))
