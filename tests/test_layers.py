import pytest
import torch
from cases import CASES, EVEN_KERNELS, TIMM, Tied, example, timm_example
from reference import as_matrix
from torch import nn

from secateur.errors import InputError
from secateur.layers import kept_dense, prunable_weights, select_layers

pytestmark = EVEN_KERNELS


class Plain(nn.Module):
    """A network as people write them, without timm."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1))
        self.embedding, self.up = nn.Embedding(3, 4), nn.ConvTranspose2d(4, 4, 2)
        self.fc = nn.Linear(4, 3)


def first_layer(model):
    return next(iter(prunable_weights(model).values()))


# --- a weight as a matrix --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_matrix_has_the_input_channels_last_and_goes_back_to_the_bit(name):
    for weight in prunable_weights(example(name)[0]).values():
        matrix = weight.matrix()
        assert matrix.equal(as_matrix(weight.parameter.detach()))
        assert not matrix.requires_grad and matrix.shape == (len(weight.parameter), weight.size // len(matrix))
        for given in (matrix, matrix.flatten(), matrix.view(1, -1)):
            assert weight.from_matrix(given).equal(weight.parameter) and weight.from_matrix(given).is_contiguous()


def test_a_mask_is_seen_as_the_weight_is():
    weight = first_layer(nn.Sequential(nn.Conv2d(3, 4, (2, 5))))
    mask = torch.rand(4, 3, 2, 5) > 0.5
    assert weight.matrix(mask)[1, 3 * 7 + 2] == mask[1, 2, 1, 2]  # kernel position 7 is row 1, column 2
    assert weight.from_matrix(weight.matrix(mask)).equal(mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_curvature_is_computed_in_float32_at_least(dtype):
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert first_layer(nn.Linear(3, 2).to(dtype)).precision == wanted


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Linear(3, 2), "linear"),
        (nn.Conv1d(4, 4, 3), "conv1d"),
        (nn.Conv2d(4, 4, 3), "conv2d"),
        (nn.Conv2d(1, 4, 3), "conv2d"),
        (nn.Conv2d(4, 4, 3, groups=2), "conv2d"),
        (nn.Conv2d(4, 4, 3, groups=4), "depthwise"),
        (nn.Conv1d(4, 8, 3, groups=4), "depthwise"),
    ],
)
def test_a_weight_knows_its_kind(module, kind):
    assert first_layer(module).kind == kind


# --- which weights there are -----------------------------------------------------------------------------------------


def test_linear_layers_and_convolutions_are_prunable_and_nothing_else():
    names = ["conv1.weight", "layer1.0.weight", "layer1.1.weight", "fc.weight"]
    assert list(prunable_weights(Plain())) == names
    assert list(prunable_weights(nn.Linear(2, 2))) == ["weight"]


def test_a_shared_weight_has_one_name_and_all_its_modules():
    model = Tied()
    weights = prunable_weights(model)
    assert list(weights) == ["first.weight"] and weights["first.weight"].modules == (model.first, model.second)


def test_a_weight_that_is_computed_from_others_is_not_prunable():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    nn.utils.parametrizations.weight_norm(model[0])
    assert list(prunable_weights(model)) == ["1.weight"]


# --- the default rule ------------------------------------------------------------------------------------------------

DENSE = {
    "vit_tiny_patch16_224": {"patch_embed.proj": "stem", "head": "head"},
    "convnext_atto": {
        "stem.0": "stem",
        "head.fc": "head",
        **{f"stages.{i}.blocks.0.conv_dw": "depthwise" for i in range(4)},
    },
    "mobilenetv3_small_050": {
        "conv_stem": "stem",
        "classifier": "head",
        **dict.fromkeys(["blocks.0.0.conv_dw", "blocks.1.0.conv_dw", "blocks.1.1.conv_dw"], "depthwise"),
        **{f"blocks.{i}.{j}.conv_dw": "depthwise" for i, count in ((2, 3), (3, 2), (4, 3)) for j in range(count)},
    },
    "swin_tiny_patch4_window7_224": {"patch_embed.proj": "stem", "head.fc": "head"},
}


@pytest.mark.parametrize("name", TIMM)
def test_the_default_rule_keeps_the_stem_the_depthwise_and_the_classifier_of_timm_models(name):
    model = timm_example(name)[0]
    weights = prunable_weights(model)
    reasons = {n.removesuffix(".weight"): why.split(":")[0] for n, why in kept_dense(model, weights).items()}
    assert reasons == DENSE[name]
    assert list(select_layers(model)) == [n for n in weights if n.removesuffix(".weight") not in reasons]


def test_the_default_rule_knows_the_usual_names_outside_timm():
    model = Plain()
    reasons = kept_dense(model, prunable_weights(model))
    assert {n: why.split(":")[0] for n, why in reasons.items()} == {
        "conv1.weight": "stem",
        "layer1.0.weight": "depthwise",
        "fc.weight": "head",
    }


@pytest.mark.parametrize("called", ["head", "heads", "fc", "classifier"])
def test_only_the_last_layer_of_a_deep_classifier_is_kept(called):
    model = nn.Sequential()
    model.add_module("features", nn.Linear(4, 4))
    model.add_module(called, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert list(select_layers(model)) == ["features.weight", f"{called}.0.weight"]


@pytest.mark.parametrize("layers", [("conv1",), ("conv1", "fc")])
def test_timms_configuration_may_name_several_modules(layers):
    model = Plain()
    model.pretrained_cfg = {"first_conv": layers, "classifier": ("fc", "layer1.1")}
    assert set(kept_dense(model, prunable_weights(model))) == {
        "conv1.weight",
        "layer1.0.weight",
        "layer1.1.weight",
        "fc.weight",
    }


# --- patterns --------------------------------------------------------------------------------------------------------

SELECTIONS = {
    "fc": ["fc"],
    "fc.weight": ["fc"],
    "layer1.*": ["layer1.0", "layer1.1"],
    "layer1.?": ["layer1.0", "layer1.1"],
    "*": ["conv1", "layer1.0", "layer1.1", "fc"],
    "*.weight": ["conv1", "layer1.0", "layer1.1", "fc"],
    r"re:^layer\d\.1$": ["layer1.1"],
    "re:conv|fc": ["conv1", "fc"],
    ("fc", "conv1"): ["conv1", "fc"],
    ("*", "!fc"): ["conv1", "layer1.0", "layer1.1"],
    ("*", "!layer1.*", "layer1.0"): ["conv1", "layer1.0", "fc"],
    ("!fc",): ["layer1.1"],
    ("*", r"!re:\.\d"): ["conv1", "fc"],
}


@pytest.mark.parametrize("patterns", SELECTIONS)
def test_patterns_choose_layers_in_the_models_order(patterns):
    given = patterns if isinstance(patterns, str) else list(patterns)
    assert [n.removesuffix(".weight") for n in select_layers(Plain(), given)] == SELECTIONS[patterns]


MISTAKES = {
    r"'layer2' matches no layer of Plain\. Did you mean layer1": "layer2",
    r"lists the 4 that can be pruned": "*.bias",
    r"'conv' matches no layer": ["*", "!conv"],
    r"'re:\(' is no regular expression: missing \)": "re:(",
    r"\['fc', '!fc'\] leave no layer of Plain": ["fc", "!fc"],
    r"\['!layer1\.1'\] leave no layer": ["!layer1.1"],
    r"\[\] leave no layer": [],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_selection_of_nothing_is_an_error_that_says_what_there_is(message):
    with pytest.raises(InputError, match=message):
        select_layers(Plain(), MISTAKES[message])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3)), r"Sequential has no weight to prune: .* keeps \['0.weight'\] dense"),
        (nn.ReLU(), "ReLU has no weight to prune: the default rule keeps nothing dense; name the layers"),
    ],
)
def test_a_model_with_nothing_to_prune_by_default_is_an_error(model, message):
    with pytest.raises(InputError, match=message):
        select_layers(model)


def test_a_layer_without_weights_is_none_that_can_be_pruned():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[1].weight = nn.Parameter(torch.empty(0, 3))
    assert list(prunable_weights(model)) == ["0.weight"]
