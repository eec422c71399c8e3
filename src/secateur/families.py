"""Families of models: how each is known, what it keeps dense beside the generic rule, and the options that suit it.

The generic rule leaves the stem, the depthwise convolutions and the head dense (layers.py). What a family adds, and
the settings of `paper=True`, are those of the CAP paper (Kuznedelev et al., NeurIPS 2023, appendix and recipes).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from timm.models.convnext import ConvNeXt
from timm.models.efficientformer import EfficientFormer
from timm.models.efficientnet import EfficientNet
from timm.models.resnet import ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from timm.models.xcit import Xcit
from torch import nn

IN_BLOCKS = ("cap", "woodfisher")  # the methods that take a family's block
PAPER_DAMPING = {"cap": 1e-8, "woodfisher": 1e-6, "obd": 1e-6, "mfac": 1e-6}  # λ as it stands, not relative
PAPER_SAMPLES_PER_GRADIENT = 128  # m, to which these λ belong
PAPER_GRADIENTS = 4096  # N
PAPER_STORED = 1024  # of which M-FAC keeps so many

POSITIONS = "positions: the same for every image"  # so no sample has a gradient of its own
SEVERAL = "patch embedding: several convolutions, all of them stem"
HEAD = "head: turns features into answers"
ANYWHERE = {  # the position networks of Swin V2, Swin V2 CR, MaxViT and CoAtNet, EdgeNeXt, and transformers' Swin V2
    "*.cpb_mlp.*": POSITIONS,
    "*.meta_mlp.*": POSITIONS,
    "*rel_pos.mlp.*": POSITIONS,
    "*.pos_embd.token_projection": POSITIONS,
    "*.continuous_position_bias_mlp.*": POSITIONS,
}


@dataclass(frozen=True)
class Family:
    """Models that are pruned alike."""

    name: str
    classes: tuple[type[nn.Module], ...] = ()  # timm's
    model_types: tuple[str, ...] = ()  # transformers'
    dense: Mapping[str, str] = field(default_factory=dict)  # {glob of module names: reason}
    block: int | None = None  # B; None for the method's own
    paper_block: int = 192
    paper_damping: Mapping[str, float] = field(default_factory=dict)  # {method: λ}, where not PAPER_DAMPING

    def options_of(self, method: str, paper: bool = False) -> dict[str, Any]:
        """What a method gets for these models where nobody says otherwise, or what the paper gave it."""
        block = self.paper_block if paper else self.block
        options: dict[str, Any] = {"block": block} if block and method in IN_BLOCKS else {}
        damping = {**PAPER_DAMPING, **self.paper_damping}
        if paper and method in damping:
            options |= {"damping": damping[method], "relative": False}
        if paper and method == "mfac":
            options["gradients"] = PAPER_STORED
        return options


FAMILIES = (
    Family("ViT, DeiT", (VisionTransformer,), ("vit", "deit"), {"patch_embed.proj": "patch embedding: as a stem"}),
    Family(
        "ConvNeXt, ConvNeXtV2",
        (ConvNeXt,),
        ("convnext", "convnextv2"),
        block=128,
        paper_block=128,
        paper_damping={"cap": 1e-7},
    ),
    Family("Swin", (SwinTransformer,), ("swin",)),
    Family("XCiT", (Xcit,), dense={"patch_embed.*": SEVERAL, "pos_embed.*": POSITIONS}),
    Family("EfficientFormer", (EfficientFormer,), dense={"stem.*": SEVERAL}),
    Family("ResNet", (ResNet,), ("resnet",), block=256, paper_block=256, paper_damping={"mfac": 1e-5}),
    Family("EfficientNet", (EfficientNet,), paper_block=16),
    Family(
        "DETR",
        model_types=("detr",),
        dense={
            "*input_projection": "projection: between backbone and transformer, in neither",
            **dict.fromkeys(("*class_labels_classifier", "*bbox_predictor.*", "mask_head.*", "bbox_attention.*"), HEAD),
        },
    ),
)
GENERIC = Family("generic")


def family_of(model: nn.Module) -> Family:
    """The family of a model, or of the one inside wrappers that add no parameters; GENERIC where none is known.

    >>> family_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))).name
    'generic'
    """
    return _row_of(core_of(model)[1]) or GENERIC


def core_of(model: nn.Module) -> tuple[str, nn.Module]:
    """What the names of its weights begin with, and the timm or transformers model inside wrappers; else the model."""
    found = "", model
    for prefix, module in _downwards(model):
        if _row_of(module) or getattr(module, "pretrained_cfg", None) or model_type_of(module):
            found = prefix, module
    return found


def model_type_of(model: nn.Module) -> str | None:
    """What transformers calls such a model; None for one that is not of transformers."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind if isinstance(kind, str) else None


def _row_of(model: nn.Module) -> Family | None:
    kind = model_type_of(model)
    return next((row for row in FAMILIES if isinstance(model, row.classes) or kind in row.model_types), None)


def _downwards(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The model, then always the child that holds all parameters, as long as one does; each after its prefix."""
    prefix, holders = "", [("", model)]
    while len(holders) == 1:
        prefix, model = prefix + holders[0][0], holders[0][1]
        yield prefix, model
        if next(model.parameters(recurse=False), None) is not None:
            return
        holders = [(f"{n}.", m) for n, m in model.named_children() if next(m.parameters(), None) is not None]
