"""Vision transformers of timm as one native encoder: which models it stands for, and how their weights go into it.

Layer norms, layer scales and the scale of attention are multiplied into the matrices beside them, where zeros stay
zeros, so the encoder only normalises. What it cannot stand for is None, and runs layer by layer.
"""

import math
from typing import Any

import torch
from timm.layers import Attention, LayerScale, Mlp, PatchEmbed
from timm.layers import LayerNorm as TimmLayerNorm
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from .. import native
from .activations import activation_name
from .packing import pack

_NORMS = (nn.LayerNorm, TimmLayerNorm)


def encoder_of(model: Any) -> tuple[Any, "Head"] | None:
    """The native encoder of a model and what comes after it, or None where it cannot stand for the model."""
    if type(model) not in (VisionTransformer, VisionTransformerDistilled) or not _fits(model):
        return None
    first, prefix = model.blocks[0].attn, model.num_prefix_tokens
    image = [model.patch_embed.proj.in_channels, *model.patch_embed.img_size, *model.patch_embed.patch_size]
    projection = model.patch_embed.proj
    encoder = native.core().Encoder.make(
        image,
        prefix,
        first.num_heads,
        first.head_dim,
        activation_name(model.blocks[0].mlp.act),
        pack(projection.weight.flatten(1), None),
        _start(model).numpy(),
    )
    for block in model.blocks:
        matrices = [pack(*matrix) for matrix in _matrices(block)]
        encoder.add_block(*matrices, block.norm1.eps, block.norm2.eps)
    return encoder, _head_of(model)


class Head(nn.Module):
    """From the tokens after the last block to the output: norm, pooling, one classifier or the mean of two."""

    def __init__(
        self, norm: nn.Module, fc_norm: nn.Module, classifiers: list[nn.Module], pool: str, prefix: int, from_token: int
    ):
        super().__init__()
        self.norm, self.fc_norm, self.classifiers = norm, fc_norm, nn.ModuleList(classifiers)
        self.pool, self.prefix, self.from_token = pool, prefix, from_token

    @property
    def tokens(self) -> int | None:
        """How many of the first tokens are enough; None for all."""
        return self.prefix if self.pool == "token" else None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(tokens)
        if self.pool == "avg":
            return self.classifiers[0](self.fc_norm(x[:, self.from_token :].mean(1)))
        outputs = [head(self.fc_norm(x[:, i])) for i, head in enumerate(self.classifiers)]
        return outputs[0] if len(outputs) == 1 else (outputs[0] + outputs[1]) / 2


def _head_of(model: Any) -> Head:
    distilled = isinstance(model, VisionTransformerDistilled)
    classifiers = [model.head, model.head_dist] if distilled else [model.head]
    fc_norm, prefix = getattr(model, "fc_norm", nn.Identity()), model.num_prefix_tokens
    from_token = 0 if model.pool_include_prefix else prefix
    return Head(model.norm, fc_norm, classifiers, model.global_pool, prefix, from_token)


def _start(model: Any) -> Tensor:
    """(features, tokens): position embeddings and the tokens before the patches, with the patches' bias."""
    bias = model.patch_embed.proj.bias
    with torch.no_grad():
        patches = torch.zeros(1, model.patch_embed.num_patches, model.embed_dim)
        tokens = model._pos_embed(patches if bias is None else patches + bias)
    return tokens[0].T.contiguous()


def _matrices(block: Any) -> list[tuple[Tensor, Tensor]]:
    """(weight, bias) of queries, keys and values, of the projection, and of the two of the perceptron."""
    attention = block.attn
    scale = torch.ones(attention.qkv.out_features, dtype=torch.float64)
    scale[: attention.attn_dim] = math.log2(math.e) / math.sqrt(attention.head_dim)  # softmax by powers of two
    return [
        _scaled(*_after_norm(block.norm1, attention.qkv), scale),
        _scaled(*_plain(attention.proj), _layer_scale(block.ls1)),
        _after_norm(block.norm2, block.mlp.fc1),
        _scaled(*_plain(block.mlp.fc2), _layer_scale(block.ls2)),
    ]


def _plain(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    weight = layer.weight.detach().double()
    bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.detach().double()
    return weight, bias


def _after_norm(norm: nn.LayerNorm, layer: nn.Linear) -> tuple[Tensor, Tensor]:
    """W(γ·x + β) + b = (W·γ)x + (Wβ + b)."""
    weight, bias = _plain(layer)
    if norm.bias is not None:
        bias = bias + weight @ norm.bias.detach().double()
    return (weight if norm.weight is None else weight * norm.weight.detach().double()), bias


def _scaled(weight: Tensor, bias: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    return (weight, bias) if scale is None else (weight * scale[:, None], bias * scale)


def _layer_scale(module: Any) -> Tensor | None:
    return module.gamma.detach().double() if isinstance(module, LayerScale) else None


def _fits(model: Any) -> bool:
    """Whether every piece is one that the encoder knows."""
    embed = model.patch_embed
    if type(embed) is not PatchEmbed or type(embed.proj) is not nn.Conv2d or not len(model.blocks):
        return False
    sizes = [size % patch == 0 for size, patch in zip(embed.img_size or (1, 1), embed.patch_size, strict=True)]
    whole = embed.img_size is not None and all(sizes) and embed.flatten and not model.dynamic_img_size
    identities = [model.norm_pre, model.patch_drop, embed.norm]
    plain_head = model.global_pool in ("token", "avg") and model.attn_pool is None
    parameters = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    heads = {(block.attn.num_heads, block.attn.head_dim) for block in model.blocks if _fits_block(block)}
    activations = {activation_name(block.mlp.act) for block in model.blocks if _fits_block(block)}
    return (
        whole
        and plain_head
        and parameters
        and all(isinstance(module, nn.Identity) for module in identities)
        and all(_fits_block(block) for block in model.blocks)
        and len(heads) == len(activations) == 1
        and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    )


def _fits_block(block: Any) -> bool:
    if type(block) is not Block or type(block.attn) is not Attention or type(block.mlp) is not Mlp:
        return False
    attention, mlp = block.attn, block.mlp
    identities = [attention.q_norm, attention.k_norm, attention.norm, mlp.norm]
    linears = [attention.qkv, attention.proj, mlp.fc1, mlp.fc2]
    return (
        all(isinstance(module, nn.Identity) for module in identities)
        and all(type(module) is nn.Linear for module in linears)
        and all(
            type(norm) in _NORMS and norm.normalized_shape == attention.qkv.weight.shape[1:]
            for norm in (block.norm1, block.norm2)
        )
        and all(isinstance(scale, nn.Identity | LayerScale) for scale in (block.ls1, block.ls2))
        and getattr(attention, "gate", None) is None
        and attention.head_dim % 8 == 0
        and activation_name(mlp.act) is not None
    )
