"""Modules that run on the native kernels: what `compile_sparse` puts in the place of torch's."""

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
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
        given = images.detach().to("cpu", torch.float32).contiguous()
        tokens = torch.empty(len(given), self.head.tokens or self.encoder.tokens, self.encoder.features)
        self.encoder.run(given.numpy(), tokens.numpy(), torch.get_num_threads())
        return self.head(tokens)
