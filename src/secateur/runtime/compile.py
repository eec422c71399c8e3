"""compile_sparse: a model as a new module that skips its zeros."""

import copy

from torch import nn

from .. import native
from .modules import SparseTransformer
from .vit import encoder_of


def compile_sparse(model: nn.Module) -> nn.Module:
    """The model in evaluation mode as a new module that skips the zeros of its weights, on the CPU and in float32.

    timm's vision transformers (ViT, DeiT) run as a whole on native kernels; other models stay as they are.

    Args:
        model: any module; it stays unchanged. Weights count as pruned where they are zero.

    Returns:
        A module with the same outputs up to rounding. It has no gradients, and can be called from several threads.

    >>> import secateur, torch
    >>> model = secateur.load_model("bundled").eval()
    >>> fast = secateur.compile_sparse(model)
    >>> images = torch.rand(2, 1, 28, 28)
    >>> torch.allclose(fast(images), model(images), atol=1e-4)
    True
    """
    own = copy.deepcopy(model).eval()
    encoder = encoder_of(own) if native.available() else None
    return SparseTransformer(*encoder) if encoder else own
