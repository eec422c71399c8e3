"""compile_sparse: the same outputs as the model, whichever way a model runs."""

import threading

import pytest
import timm
import torch
from torch import nn

import secateur
from secateur import native
from secateur.runtime.modules import SparseTransformer

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.describe()['reason']}")

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 5}
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
            if parameter.dim() == 2:
                parameter.mul_(torch.rand_like(parameter) >= sparsity)
    return model


def relative_difference(a, b):
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("case", WHOLE)
def test_a_vision_transformer_runs_as_one_encoder_with_the_same_outputs(case):
    model = pruned(*WHOLE[case])
    fast = secateur.compile_sparse(model)
    assert isinstance(fast, SparseTransformer)
    channels, height, width = fast.image
    for batch in (1, 2, 7):
        images = torch.randn(batch, channels, height, width)
        with torch.no_grad():
            assert relative_difference(fast(images), model(images)) < 1e-5


def test_many_images_pass_in_chunks():
    model = pruned("vit_tiny_patch16_224", SMALL | {"img_size": 64, "patch_size": 4, "embed_dim": 96})
    images = torch.randn(64, 3, 64, 64)
    with torch.no_grad():
        assert relative_difference(secateur.compile_sparse(model)(images), model(images)) < 1e-5


def test_the_bundled_model_gives_the_same_classes():
    model = secateur.load_model("bundled").eval()
    images = torch.rand(5, 1, 28, 28)
    with torch.no_grad():
        assert relative_difference(secateur.compile_sparse(model)(images), model(images)) < 1e-5


def test_threads_at_once_get_what_one_alone_gets():
    fast = secateur.compile_sparse(pruned(*WHOLE["class token"]))
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
    fast = secateur.compile_sparse(pruned(*WHOLE["class token"]))
    with pytest.raises(secateur.InputError, match=r"takes images \(batch, 3, 32, 32\), not \(1, 3, 40, 40\)"):
        fast(torch.zeros(1, 3, 40, 40))
