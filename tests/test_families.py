"""Which weights of which models are pruned, why the others are not, and every family pruned from end to end."""

import logging
import re
from collections import Counter
from pathlib import Path

import pytest
import timm
import torch
import transformers
from members import MEMBERS, loss_of, member
from torch import nn
from torch.testing import assert_close

from secateur.checkpoint import load, save
from secateur.errors import InputError
from secateur.families import FAMILIES, GENERIC, family_of
from secateur.gradients import stream_gradients
from secateur.layers import kept_dense, prunable_weights, select_layers
from secateur.prune import prune_

DOCUMENT = (Path(__file__).parents[1] / "docs" / "families.md").read_text()


def on_meta(name):
    """A model of its real size, without memory for its weights."""
    with torch.device("meta"):
        if name in OF_TRANSFORMERS:
            config = getattr(transformers, f"{name.partition('For')[0]}Config")
            return getattr(transformers, name)(config())
        return timm.create_model(name)


def reasons(model):
    """How many layers are dense, by the first word of the reason."""
    return dict(Counter(re.split(r"[ :]", why)[0] for why in kept_dense(model, prunable_weights(model)).values()))


# --- models at their real size ----------------------------------------------------------------------------------------

ENDS = {"stem": 1, "head": 1}
REAL = {  # name: family, layers pruned, weights in them, layers that stay dense
    "deit_tiny_patch16_224": ("ViT, DeiT", 48, 5_308_416, ENDS),
    "deit_small_patch16_224": ("ViT, DeiT", 48, 21_233_664, ENDS),
    "deit_base_distilled_patch16_224": ("ViT, DeiT", 48, 84_934_656, {"stem": 1, "head": 2}),
    "vit_small_r26_s32_224": ("ViT, DeiT", 76, 35_139_584, ENDS | {"patch": 1}),
    "convnext_tiny": ("ConvNeXt, ConvNeXtV2", 39, 27_426_816, ENDS | {"depthwise": 18}),
    "convnext_small": ("ConvNeXt, ConvNeXtV2", 75, 48_660_480, ENDS | {"depthwise": 36}),
    "convnextv2_tiny": ("ConvNeXt, ConvNeXtV2", 39, 27_426_816, ENDS | {"depthwise": 18}),
    "swin_tiny_patch4_window7_224": ("Swin", 51, 27_426_816, ENDS),
    "xcit_tiny_12_p16_224": ("XCiT", 60, 6_193_152, ENDS | {"patch": 3, "positions": 1, "depthwise": 24}),
    "efficientformer_l1": ("EfficientFormer", 35, 11_318_784, {"stem": 1, "patch": 1, "head": 2}),
    "resnet50d": ("ResNet", 54, 23_473_152, ENDS),
    "efficientnetv2_rw_t": ("EfficientNet", 135, 12_243_264, ENDS | {"depthwise": 29}),
    "mobilenetv2_100": ("EfficientNet", 34, 2_124_672, ENDS | {"depthwise": 17}),
    "mobilenetv3_large_100": ("generic", 47, 4_079_232, ENDS | {"depthwise": 15}),
    "mixer_b16_224": ("generic", 48, 58_429_440, ENDS),
    "maxvit_rmlp_tiny_rw_256": ("generic", 136, 28_313_600, ENDS | {"depthwise": 11, "positions": 44}),
    "regnety_004": ("generic", 84, 3_869_920, ENDS),
    "beit_base_patch16_224": ("generic", 48, 84_934_656, ENDS),
    "eva02_tiny_patch14_224": ("generic", 48, 5_308_416, {"stem": 1}),
    "swinv2_tiny_window8_256": ("generic", 51, 27_426_816, ENDS | {"positions": 24}),
    "swinv2_cr_tiny_224": ("generic", 51, 27_426_816, ENDS | {"positions": 24}),
    "edgenext_small": ("generic", 45, 5_121_024, ENDS | {"depthwise": 21, "positions": 1}),
}
OF_TRANSFORMERS = {
    "ViTForImageClassification": ("ViT, DeiT", 72, 84_934_656, ENDS),
    "DeiTForImageClassificationWithTeacher": ("ViT, DeiT", 72, 84_934_656, {"stem": 1, "head": 2}),
    "ConvNextForImageClassification": ("ConvNeXt, ConvNeXtV2", 39, 27_426_816, ENDS | {"depthwise": 18}),
    "SwinForImageClassification": ("Swin", 75, 27_426_816, ENDS),
    "Swinv2ForImageClassification": ("generic", 75, 27_426_816, ENDS | {"positions": 24}),
    "ResNetForImageClassification": ("ResNet", 52, 23_445_504, ENDS),
    "DetrForObjectDetection": ("DETR", 148, 40_747_008, {"stem": 1, "projection": 1, "head": 4}),
    "SegformerForImageClassification": ("generic", 57, 3_256_320, ENDS | {"depthwise": 8}),
}


@pytest.mark.parametrize("name", REAL | OF_TRANSFORMERS)
def test_a_model_is_of_its_family_and_as_much_of_it_is_pruned_as_the_table_says(name):
    model, (family, layers, weights, dense) = on_meta(name), (REAL | OF_TRANSFORMERS)[name]
    chosen = select_layers(model)
    assert family_of(model).name == family
    assert (len(chosen), sum(weight.size for weight in chosen.values())) == (layers, weights)
    assert reasons(model) == dense
    assert len(prunable_weights(model)) == layers + sum(dense.values())


IN_THE_PAPER = {  # the names of the layers that it prunes
    "deit_small_patch16_224": r"blocks\.\d+\.(attn\.(qkv|proj)|mlp\.fc[12])",
    "convnext_small": r"stages\.\d\.(blocks\.\d+\.mlp\.fc[12]|downsample\.1)",
    "convnextv2_tiny": r"stages\.\d\.(blocks\.\d+\.mlp\.fc[12]|downsample\.1)",
    "swin_tiny_patch4_window7_224": r"layers\.\d\.(blocks\.\d+\.(attn\.(qkv|proj)|mlp\.fc[12])|downsample\.reduction)",
    "xcit_tiny_12_p16_224": r"(blocks|cls_attn_blocks)\.\d+\.(attn\.(qkv|q|k|v|proj)|mlp\.fc[12])",
    "efficientformer_l1": r"stages\.\d\.(downsample\.conv|blocks\.\d+\.(token_mixer\.(qkv|proj)|mlp\.fc[12]))",
    "resnet50d": r"conv1\.[36]|layer\d\.\d\.(conv[123]|downsample\.1)",
    "efficientnetv2_rw_t": r"blocks\.\d\.\d+\.(conv|conv_exp|conv_pw|conv_pwl|se\.conv_(reduce|expand))|conv_head",
    "DetrForObjectDetection": r"model\.(backbone\.model\.layer.*(conv.|downsample\.0)|(en|de)coder\..*(proj|fc.))",
}


@pytest.mark.parametrize("name", IN_THE_PAPER)
def test_the_layers_pruned_are_those_of_the_paper_less_the_depthwise_ones(name):
    model = on_meta(name)
    weights = prunable_weights(model)
    named = {n for n, w in weights.items() if re.fullmatch(IN_THE_PAPER[name], n.removesuffix(".weight"))}
    assert set(select_layers(model)) == {n for n in named if weights[n].kind != "depthwise"}


@pytest.mark.parametrize("name", REAL | OF_TRANSFORMERS)
def test_the_table_of_the_document_has_these_figures(name):
    _, layers, weights, _ = (REAL | OF_TRANSFORMERS)[name]
    rows = [line for line in DOCUMENT.splitlines() if f"`{name}`" in line and line.startswith("|")]
    assert not rows or f"| {layers} | {weights:,} |" in rows[0]


@pytest.mark.parametrize("family", [*FAMILIES, GENERIC], ids=lambda family: family.name)
def test_every_family_is_in_the_document(family):
    assert f"\n| {family.name} |" in DOCUMENT
    assert all(re.search(rf"\b{c.__name__}\b", DOCUMENT) for c in family.classes)


# --- how a model is recognised ---------------------------------------------------------------------------------------


class Normalised(nn.Module):
    """What people put around a model; it has no weights of its own."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.zeros(3, 1, 1))

    def forward(self, x):
        return self.model(x - self.mean)


class Own(nn.Module):
    """A trunk of timm's under a head of one's own."""

    def __init__(self):
        super().__init__()
        self.trunk, self.head = member("xcit")[0], nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.trunk(x))


@pytest.mark.parametrize("name", ["xcit", "transformers' deit with a teacher", "byobnet"])
@pytest.mark.parametrize(
    ("wrap", "prefix"),
    [
        (Normalised, "model."),
        (nn.DataParallel, "module."),
        (lambda model: nn.Sequential(nn.Identity(), Normalised(model)), "1.model."),
    ],
)
def test_a_wrapper_without_weights_changes_nothing_but_the_names(name, wrap, prefix):
    model, wrapped = member(name)[0], wrap(member(name)[0])
    assert family_of(wrapped) is family_of(model)
    assert list(select_layers(wrapped)) == [prefix + n for n in select_layers(model)]
    dense = kept_dense(wrapped, prunable_weights(wrapped))
    assert dense == {prefix + n: why for n, why in kept_dense(model, prunable_weights(model)).items()}


def test_a_timm_model_inside_transformers_is_what_it_is_in_timm():
    config = transformers.TimmWrapperConfig(architecture="xcit_tiny_12_p16_224")
    with torch.device("meta"):
        model = transformers.TimmWrapperForImageClassification(config)
    assert family_of(model).name == "XCiT"
    assert [f"timm_model.{n}" for n in select_layers(on_meta("xcit_tiny_12_p16_224"))] == list(select_layers(model))


def test_a_model_that_only_holds_one_of_a_family_is_generic():
    model = Own()
    assert family_of(model) is GENERIC
    assert list(kept_dense(model, prunable_weights(model)).values()).count("head: turns features into answers") == 1
    assert "trunk.patch_embed.proj.0.0.weight" not in select_layers(model)  # listed first
    assert "trunk.patch_embed.proj.2.0.weight" in select_layers(model)


def test_a_detr_for_segmentation_keeps_its_heads_dense():
    backbone = transformers.ResNetConfig(out_features=["stage1", "stage2", "stage3", "stage4"])
    with torch.device("meta"):
        model = transformers.DetrForSegmentation(transformers.DetrConfig(backbone_config=backbone))
    outside = {n for n in prunable_weights(model) if not re.search(r"\.(encoder|decoder|backbone)\.", n)}
    assert outside.isdisjoint(select_layers(model)) and len(outside) > 10


# --- every family on small members -----------------------------------------------------------------------------------

ALONE = {"swin v2"}  # uses the weights of qkv without calling the layer
DEAD = {"model.decoder.layers.0.self_attn.v_proj.weight"}  # DETR's queries start as zeros, which is all it sees


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_is_of_its_family(name):
    assert family_of(member(name)[0]).name == MEMBERS[name].family


@pytest.mark.parametrize("name", MEMBERS)
def test_every_chosen_layer_gives_the_gradients_each_sample_has(name, caplog):
    caplog.set_level(logging.INFO, "secateur")
    model, batch = member(name)
    weights, loss = select_layers(model), loss_of(name)
    found = {layer: [] for layer in weights}
    assert stream_gradients(model, [batch], weights, lambda n, g: found[n].append(g.clone()), loss=loss) == 2
    assert (name in ALONE) == ("every sample runs alone" in caplog.text)
    for sample in range(2):
        twice = [part[[sample, sample]] for part in batch]  # a pair: torch's batch norms fail some single samples
        parameters = [weight.parameter.requires_grad_() for weight in weights.values()]
        outputs = model(twice[0])
        outputs = getattr(outputs, "logits", outputs) if loss is None else outputs
        total = (loss or nn.functional.cross_entropy)(outputs, twice[1]).mean()
        for (layer, weight), truth in zip(weights.items(), torch.autograd.grad(total, parameters), strict=True):
            assert truth.any() != (layer in DEAD), layer
            assert_close(found[layer][0][sample], weight.matrix(truth))


def test_layers_that_hooks_cannot_take_apart_are_named(caplog):
    caplog.set_level(logging.INFO, "secateur")
    model, batch = member("swin v2")
    stream_gradients(model, [batch], select_layers(model), lambda name, gradients: None)
    assert "apart in layers.0.blocks.0.attn.qkv.weight and 2 more: every sample runs alone" in caplog.text


@pytest.mark.parametrize("method", ["magnitude", "cap"])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_is_pruned_saved_and_loaded_again(name, method, tmp_path):
    model, batch = member(name, dtype=torch.float32)
    before = {n: tensor.clone() for n, tensor in model.state_dict().items()}
    result = prune_(model, [batch], method, 0.5, loss=loss_of(name), recalibrate=False)
    sizes = {n: weight.size for n, weight in select_layers(model).items()}
    assert result.zeros == round(0.5 * sum(sizes.values())) and set(result.masks) == set(sizes)
    assert all(tensor.equal(before[n]) for n, tensor in model.state_dict().items() if n not in sizes)
    save(model, result, tmp_path / "run")
    again, masks = load(tmp_path / "run", None if hasattr(model, "pretrained_cfg") else MEMBERS[name].make())
    assert all(tensor.equal(model.state_dict()[n]) for n, tensor in again.state_dict().items())
    assert all(mask.equal(result.masks[n]) for n, mask in masks.items())


def test_a_pattern_near_a_layer_of_the_family_says_which():
    with pytest.raises(InputError, match=r"matches no layer of ConvNeXt\. Did you mean stages\.0\.blocks\.0\.mlp\.fc2"):
        select_layers(member("convnext")[0], "stages.0.blocks.0.mlp.fc3")
