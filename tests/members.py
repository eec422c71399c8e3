"""Small members of every family, with random weights: how to make each, and the side of its images."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import timm
import torch
import transformers
from timm.models.mlp_mixer import MlpMixer
from torch import nn

NARROW_VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
NARROW_CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (4, 8, 12, 16)}
NARROW_SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": (2, 1), "num_heads": (2, 2)}
OF_TRANSFORMERS = {"num_labels": 3, "image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1}
OF_ENCODERS = {"num_attention_heads": 2, "intermediate_size": 24}
STAGES = {"hidden_sizes": [4, 8, 12, 16], "depths": [1, 1, 1, 1], "num_labels": 3}
SWIN = {"image_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2]}
RESNET = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2]}


@dataclass(frozen=True)
class Member:
    family: str
    make: Callable[[], nn.Module]
    side: int = 32  # of its images, in pixels


def _timm(name, **arguments):
    return partial(timm.create_model, name, num_classes=3, **arguments)


def _transformers(name, **arguments):
    """`name` as in ViTForImageClassification, from a configuration alone."""
    config = getattr(transformers, f"{name}Config")
    return lambda: getattr(transformers, f"{name}ForImageClassification")(config(**arguments))


def _deit_with_a_teacher():
    config = transformers.DeiTConfig(**OF_TRANSFORMERS, **OF_ENCODERS)
    return transformers.DeiTForImageClassificationWithTeacher(config)


def _detr():
    return transformers.DetrForObjectDetection(
        transformers.DetrConfig(
            backbone_config=transformers.ResNetConfig(**RESNET, out_features=["stage2"]), num_queries=5, num_labels=3,
            d_model=16, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
            encoder_attention_heads=2, decoder_attention_heads=2,
        )
    )  # fmt: skip


VIT, CONVNEXT, EFFICIENT = "ViT, DeiT", "ConvNeXt, ConvNeXtV2", "EfficientFormer"
MEMBERS = {
    "deit": Member(VIT, _timm("deit_tiny_patch16_224", **NARROW_VIT), 16),
    "deit, distilled": Member(VIT, _timm("deit_tiny_distilled_patch16_224", **NARROW_VIT), 16),
    "convnext": Member(CONVNEXT, _timm("convnext_tiny", **NARROW_CONVNEXT)),
    "convnext, mlp of convolutions": Member(CONVNEXT, _timm("convnext_atto", **NARROW_CONVNEXT)),
    "convnextv2": Member(CONVNEXT, _timm("convnextv2_tiny", **NARROW_CONVNEXT)),
    "swin": Member("Swin", _timm("swin_tiny_patch4_window7_224", **NARROW_SWIN)),
    "xcit": Member(
        "XCiT", _timm("xcit_tiny_12_p16_224", img_size=32, embed_dim=16, depth=1, num_heads=2, cls_attn_layers=1)
    ),
    "efficientformer": Member(
        EFFICIENT, _timm("efficientformer_l1", depths=(1, 1, 1, 2), embed_dims=(4, 6, 8, 10), num_vit=1), 224
    ),
    "resnet50d": Member("ResNet", _timm("resnet50d", layers=(1, 1, 1, 1), channels=(4, 4, 8, 8), stem_width=4), 64),
    "efficientnet": Member("EfficientNet", _timm("test_efficientnet")),
    "transformers' vit": Member(VIT, _transformers("ViT", **OF_TRANSFORMERS, **OF_ENCODERS), 16),
    "transformers' deit": Member(VIT, _transformers("DeiT", **OF_TRANSFORMERS, **OF_ENCODERS), 16),
    "transformers' deit with a teacher": Member(VIT, _deit_with_a_teacher, 16),
    "transformers' convnext": Member(CONVNEXT, _transformers("ConvNext", **STAGES)),
    "transformers' convnextv2": Member(CONVNEXT, _transformers("ConvNextV2", **STAGES)),
    "transformers' swin": Member("Swin", _transformers("Swin", **SWIN, num_labels=3)),
    "transformers' resnet": Member("ResNet", _transformers("ResNet", **RESNET, num_labels=3)),
    "detr": Member("DETR", _detr, 64),
    # of no family
    "mixer": Member(
        "generic", partial(MlpMixer, img_size=16, patch_size=8, embed_dim=16, num_blocks=1, num_classes=3), 16
    ),
    "byobnet": Member("generic", _timm("test_byobnet")),
    "swin v2": Member("generic", _timm("swinv2_tiny_window8_256", **NARROW_SWIN)),
    "transformers' dinov2": Member("generic", _transformers("Dinov2", **OF_TRANSFORMERS, num_attention_heads=2), 16),
}


def member(name, samples=2, dtype=torch.float64):
    """(model, (images, labels)); nothing in it is zero or the same everywhere because it was initialised so."""
    torch.manual_seed(0)
    row = MEMBERS[name]
    model, images = row.make().to(dtype), torch.randn(samples, 3, row.side, row.side, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        model.train()(images)  # batch normalisation's statistics
    return model.eval(), (images, torch.arange(samples) % 3)


def loss_of(name):
    """What the model is pruned for: cross-entropy, where it classifies."""
    return _of_queries if name == "detr" else None


def _of_queries(outputs, labels):
    """A value a sample, of everything that DETR answers."""
    return outputs.logits.logsumexp(2).mean(1) + outputs.pred_boxes.square().sum((1, 2))
