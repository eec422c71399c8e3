"""compile_sparse: the same outputs as the model, whichever way a model runs."""

import threading

import pytest
import timm
import torch
from torch import nn

import secateur
from secateur import native
from secateur.runtime.modules import SparseConv2d, SparseLinear, SparseTransformer

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.describe()['reason']}")

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 5}
SMALL_SWIN = {"img_size": 64, "window_size": 4, "embed_dim": 8, "depths": (1, 2), "num_heads": (2, 2)}
WHOLE = {  # vision transformers that run as one encoder
    "class token": ("vit_tiny_patch16_224", SMALL),
    "distilled": ("deit_tiny_distilled_patch16_224", SMALL),
    "mean of the tokens": ("vit_tiny_patch16_224", SMALL | {"global_pool": "avg", "class_token": False}),
    "mean, with a class token": ("vit_tiny_patch16_224", SMALL | {"global_pool": "avg"}),
    "layer scale": ("deit3_small_patch16_224", SMALL | {"init_values": 0.3}),
    "registers": ("vit_tiny_patch16_224", SMALL | {"reg_tokens": 4, "no_embed_class": True}),
    "no biases": ("vit_tiny_patch16_224", SMALL | {"qkv_bias": False, "proj_bias": False}),
    "odd sizes": ("vit_tiny_patch16_224", SMALL | {"img_size": (24, 40), "mlp_ratio": 2.6, "num_classes": 7}),
    "ReLU": ("vit_tiny_patch16_224", SMALL | {"act_layer": nn.ReLU}),
    "SiLU": ("vit_tiny_patch16_224", SMALL | {"act_layer": nn.SiLU}),
    "no classifier": ("vit_tiny_patch16_224", SMALL | {"num_classes": 0}),
}


def pruned(name, arguments, sparsity=0.8):
    """A model with random weights everywhere, so that nothing is lost in zeros and ones, most of the matrices' zero."""
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 1.0 if parameter.dim() < 2 else 2 / parameter[0].numel() ** 0.5
            parameter.add_(torch.randn_like(parameter) * 0.3 * spread)
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.weight.mul_(torch.rand_like(module.weight) >= sparsity)
    return model


def relative_difference(a, b):
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("case", WHOLE)
def test_a_vision_transformer_runs_as_one_encoder_with_the_same_outputs(case):
    model = pruned(*WHOLE[case])
    fast = secateur.compile_sparse(model, measure=False)
    assert isinstance(fast, SparseTransformer)
    channels, height, width = fast.image
    for batch in (1, 2, 7):
        images = torch.randn(batch, channels, height, width)
        with torch.no_grad():
            assert relative_difference(fast(images), model(images)) < 1e-5


LAYERWISE = {  # models whose layers are replaced one by one
    "convnext_atto": {"depths": [1, 1, 1, 1], "dims": [8, 16, 24, 32]},
    "resnet26": {"layers": [1, 1, 1, 1], "channels": [8, 16, 24, 32]},
    "resnetv2_50": {"layers": [1, 1, 1, 1], "channels": [8, 16, 24, 32], "stem_chs": 8},
    "efficientnet_b0": {},
    "mobilenetv3_small_050": {},
    "swin_tiny_patch4_window7_224": SMALL_SWIN,
    "xcit_nano_12_p16_224": {"img_size": 64, "embed_dim": 16, "depth": 2, "num_heads": 2},
    "vit_tiny_patch16_224": SMALL | {"img_size": 64, "qk_norm": True},
    "vit_base_patch16_clip_224": SMALL | {"img_size": 64},
}


@pytest.mark.parametrize("name", LAYERWISE)
def test_any_other_model_runs_layer_by_layer_with_the_same_outputs(name):
    model = pruned(name, {"num_classes": 5} | LAYERWISE[name])
    with torch.no_grad():
        model.train()(torch.randn(8, 3, 64, 64))  # statistics of batch normalisation that are not 0 and 1
        model.eval()
        fast = secateur.compile_sparse(model, torch.randn(2, 3, 64, 64), measure=False)
        assert any(isinstance(module, SparseConv2d | SparseLinear) for module in fast.modules())
        assert not any(isinstance(module, SparseTransformer) for module in fast.modules())
        for batch in (1, 3):
            images = torch.randn(batch, 3, 64, 64)
            assert relative_difference(fast(images), model(images)) < 1e-4


def test_batch_normalisation_additions_and_activations_join_the_convolutions():
    model = pruned("resnet26", LAYERWISE["resnet26"])
    fast = secateur.compile_sparse(model, torch.randn(2, 3, 64, 64), measure=False)
    kinds = {type(module).__name__ for module in fast.modules() if not list(module.children())}
    assert kinds >= {"SparseConv2d", "NativeMaxPool2d"} and not kinds & {"BatchNorm2d", "ReLU", "MaxPool2d"}
    assert "add" not in fast.code


def test_a_measured_model_is_the_model_and_takes_many_images_in_parts(monkeypatch):
    model = pruned("resnet26", LAYERWISE["resnet26"])
    monkeypatch.setattr("secateur.runtime.compile._PART", 4 * 3 * 64 * 64)
    images = torch.randn(10, 3, 64, 64)
    with torch.no_grad():
        assert relative_difference(secateur.compile_sparse(model, images)(images), model(images)) < 1e-5


def test_a_layer_that_gains_nothing_stays_dense(monkeypatch):
    monkeypatch.setattr("secateur.runtime.compile.is_faster", lambda sparse, dense, shapes: False)
    model = pruned(*WHOLE["class token"])
    assert type(secateur.compile_sparse(model)) is type(model)
    layer = nn.Sequential(nn.Linear(8, 8))
    layer[0].weight.data.zero_()
    assert type(secateur.compile_sparse(layer, torch.ones(1, 8))[0]) is nn.Linear


def test_one_layer_in_two_places_stays_one():
    shared = nn.Linear(8, 8)
    shared.weight.data[:6] = 0
    fast = secateur.compile_sparse(nn.Sequential(shared, nn.Tanh(), shared), torch.ones(1, 8), measure=False)
    assert isinstance(fast[0], SparseLinear) and fast[0] is fast[2]


def test_layers_with_hooks_or_of_other_kinds_stay_as_they_are():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layers = [nn.Linear(8, 8), Scaled(8, 8), nn.Conv1d(8, 8, 1), nn.Conv2d(8, 8, 1, groups=2)]
    for layer in layers:
        layer.weight.data.zero_()
    layers[0].register_forward_hook(lambda module, inputs, output: output + 1)
    for layer, shape in zip(layers, [(2, 8), (2, 8), (2, 8, 3), (2, 8, 3, 3)], strict=True):
        fast = secateur.compile_sparse(nn.Sequential(layer), torch.randn(shape), measure=False)
        assert type(fast[0]) is type(layer)


def test_a_model_that_asks_a_layer_for_its_weight_stays_as_it_is():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.layer.weight.data[:6] = 0

        def forward(self, x):
            return nn.functional.linear(self.layer(x), self.layer.weight)

    model, x = Tied(), torch.randn(2, 8)
    fast = secateur.compile_sparse(model, x, measure=False)
    assert type(fast.layer) is nn.Linear and torch.equal(fast(x), model(x))


def test_a_model_of_several_outputs_stays_as_it_is():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.layer.weight.data[:6] = 0

        def forward(self, x):
            return x, self.layer(x)

    fast = secateur.compile_sparse(Pair(), torch.randn(2, 8), measure=False)
    assert type(fast.layer) is nn.Linear


def test_without_kernels_the_model_is_a_copy(monkeypatch):
    monkeypatch.setattr(native, "available", lambda: False)
    model = pruned(*WHOLE["class token"])
    fast = secateur.compile_sparse(model)
    assert type(fast) is type(model) and fast is not model


def test_a_model_that_does_not_name_its_input_needs_an_example():
    model = nn.Sequential(nn.Linear(8, 8))
    model[0].weight.data.zero_()
    with pytest.raises(secateur.InputError, match="Sequential does not say what it takes; give"):
        secateur.compile_sparse(model)


def test_the_number_of_threads_is_torchs(monkeypatch):
    asked = []
    fast = secateur.compile_sparse(pruned(*WHOLE["class token"]), measure=False)

    class Encoder:
        tokens, features, image = fast.encoder.tokens, fast.encoder.features, fast.encoder.image

        def run(self, images, outputs, threads):
            asked.append(threads)
            outputs[:] = 0

    fast.encoder = Encoder()
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        fast(torch.zeros(1, 3, 32, 32))
    assert asked == [1, 2]


def test_many_images_pass_in_chunks():
    model = pruned("vit_tiny_patch16_224", SMALL | {"img_size": 64, "patch_size": 4, "embed_dim": 96})
    images = torch.randn(64, 3, 64, 64)
    with torch.no_grad():
        assert relative_difference(secateur.compile_sparse(model, measure=False)(images), model(images)) < 1e-5


def test_the_bundled_model_gives_the_same_classes():
    model = secateur.load_model("bundled").eval()
    images = torch.rand(5, 1, 28, 28)
    with torch.no_grad():
        assert relative_difference(secateur.compile_sparse(model)(images), model(images)) < 1e-5


def test_threads_at_once_get_what_one_alone_gets():
    fast = secateur.compile_sparse(pruned(*WHOLE["class token"]), measure=False)
    inputs = [torch.randn(3, 3, 32, 32) for _ in range(8)]
    alone = [fast(images) for images in inputs]
    found = [None] * 8

    def run(i):
        for _ in range(5):
            found[i] = fast(inputs[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))


def test_the_model_stays_as_it_was():
    model = pruned(*WHOLE["class token"]).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    secateur.compile_sparse(model)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_images_of_another_size_are_refused():
    fast = secateur.compile_sparse(pruned(*WHOLE["class token"]), measure=False)
    with pytest.raises(secateur.InputError, match=r"takes images \(batch, 3, 32, 32\), not \(1, 3, 40, 40\)"):
        fast(torch.zeros(1, 3, 40, 40))
