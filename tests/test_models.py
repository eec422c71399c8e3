import json
import shutil
import socket
import time

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import nn

from secateur import hub
from secateur.bundled import MODEL_FOLDER
from secateur.errors import InputError, nearest
from secateur.models import check_finite, class_count, describe_model, input_shape, load_checkpoint_, load_model

WEIGHTS = MODEL_FOLDER / "model.safetensors"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(MODEL_FOLDER, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network, and nothing in the cache."""
    monkeypatch.setattr(hub, "_hub_answers", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def change_weights(path, **changes):
    """Replace tensors of a file, or leave them out where the new one is None."""
    weights = load_file(path) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, path)


def assert_same(first, second):
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())


def test_a_folder_may_be_named_in_each_way(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    for name in ("bundled", str(folder), f"local-dir:{folder}", "model"):
        model = load_model(name)
        assert_same(model, load_model("bundled"))
        assert not model.training


def test_a_checkpoint_takes_the_place_of_the_folders_weights(folder):
    change_weights(folder / "model.safetensors", head__bias=torch.arange(10.0))
    assert load_model("bundled", checkpoint=folder / "model.safetensors").head.bias.tolist() == list(range(10))
    shutil.move(folder / "model.safetensors", folder / "other.safetensors")
    assert load_model(str(folder), checkpoint=folder / "other.safetensors").head.bias[9] == 9


def test_without_pretrained_the_weights_are_random_and_the_folder_may_have_none(folder):
    (folder / "model.safetensors").unlink()
    model = load_model(str(folder), pretrained=False)
    assert not torch.equal(model.head.weight, load_model("bundled").head.weight)


def test_another_number_of_classes_means_a_fresh_classifier_on_the_same_body():
    model = load_model("bundled", num_classes=3)
    assert class_count(model) == 3 and model.head.weight.shape == (3, 128)
    assert torch.equal(model.patch_embed.proj.weight, load_model("bundled").patch_embed.proj.weight)


MISTAKES = {
    r"timm has no model 'resnet5O'\. Did you mean resnet50": {"name": "resnet5O"},
    r"timm has no model 'Bundled'\. Did you mean bundled": {"name": "Bundled"},
    r"timm has no weights 'a9_in1k' of resnet18; it has .*resnet18\.a1_in1k": {"name": "resnet18.a9_in1k"},
    "There is no model folder 'runs/nowhere'; give a folder, a timm name": {"name": "runs/nowhere"},
    "There is no model folder ''": {"name": ""},
    "There is no model folder nowhere": {"name": "local-dir:nowhere"},
    r"model\.safetensors is a file; name its architecture, or its folder": {"name": str(WEIGHTS)},
    "num_classes is 0; give a whole number from 1": {"name": "bundled", "num_classes": 0},
    r"There is no checkpoint none\.safetensors": {"name": "bundled", "checkpoint": "none.safetensors"},
    r"checkpoint a\.pth is no \.safetensors file, and pickles are not opened; .*save_file": {
        "name": "bundled", "checkpoint": "a.pth",
    },
}  # fmt: skip


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_named(message):
    with pytest.raises(InputError, match=message):
        load_model(**MISTAKES[message])


CONFIGS = {
    "config.json is no JSON": "{",
    'is no JSON with an entry "architecture"': "[]",
    'with an entry "architecture"': '{"architecture": ["vit"]}',
    r"holds a mine.Net, which timm cannot build; .* with secateur.load\('.*', model\)": '{"class": "mine.Net"}',
    "names 'vit_tinny_patch16_224', no model of timm.* Did you mean vit_tiny_patch16_224": {
        "architecture": "vit_tinny_patch16_224"
    },
    "do not make a model: not all arguments converted": {"embed_dim": "wide"},
    "do not make a model: dim should be divisible by num_heads": {"num_heads": 7},
    "do not make a model: Expected a positive image size": {"img_size": 0},
    "do not make a model: .*size mismatch": {"embed_dim": 64},
    "do not make a model: 'int' object": {"pretrained_cfg": 5},
}


@pytest.mark.parametrize("message", CONFIGS)
def test_a_config_that_does_not_make_the_model_is_named(folder, message):
    config, new = json.loads((folder / "config.json").read_text()), CONFIGS[message]
    if isinstance(new, dict):
        (config if new.keys() & config.keys() else config["model_args"]).update(new)
        new = json.dumps(config)
    (folder / "config.json").write_text(new)
    with pytest.raises(InputError, match=message):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_is_missing_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"The model folder .* has no {name}"):
        load_model(str(folder))


def test_pickled_weights_in_a_folder_are_not_opened(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        InputError, match=r"has no model\.safetensors; convert other formats to it, or give a checkpoint"
    ):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("folder", "do not make a model: "),
        ("checkpoint", r"model\.safetensors cannot be read: .*; copy or download it"),
    ],
)
def test_weights_that_are_cut_off_are_named(folder, given, message):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=message):
        load_model(str(folder)) if given == "folder" else load_model("bundled", checkpoint=path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head__bias": None}, r"does not fit VisionTransformer: head\.bias is missing;"),
        ({"head__bias": None, "head__bais": torch.zeros(10)}, r"head\.bias is missing \(and 1 more\); name the archi"),
        (
            {"head__bais": torch.zeros(10)},
            r"fit VisionTransformer: head\.bais is not in the model;",
        ),
        ({"head__bias": torch.zeros(4)}, r"head\.bias has shape \(4,\), the model's has \(10,\)"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(folder, changes, message):
    change_weights(folder / "model.safetensors", **changes)
    model = load_model("bundled")
    with pytest.raises(InputError, match=message):
        load_checkpoint_(model, folder / "model.safetensors")
    assert_same(model, load_model("bundled"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_name_the_tensor(folder, bad):
    change_weights(folder / "model.safetensors", head__bias=torch.tensor([bad, bad, *[0.0] * 8]))
    with pytest.raises(InputError, match=r"2 of the 10 values of head\.bias are NaN or infinite; load intact weights"):
        load_model(str(folder))


def test_buffers_are_looked_at_too():
    model = nn.BatchNorm2d(3)
    model.running_var[1] = float("inf")
    with pytest.raises(InputError, match="1 of the 3 values of running_var"):
        check_finite(model)


# --- the hub ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18.a1_in1k", "resnet18", "hf-hub:timm/resnet18.a1_in1k"])
def test_without_a_network_the_answer_is_one_sentence_and_quick(offline, name):
    start = time.perf_counter()
    with pytest.raises(
        InputError, match=r"weights of .*resnet18.* cannot be had .*; give a checkpoint or a model folder"
    ):
        load_model(name)
    assert time.perf_counter() - start < 20 and not constants.HF_HUB_OFFLINE


def test_an_architecture_without_weights_says_so(offline):
    with pytest.raises(
        InputError, match=r"The weights of vit_small_patch16_18x2_224 cannot be had \(No pretrained weights exist"
    ):
        load_model("vit_small_patch16_18x2_224")


def test_random_weights_ask_nobody(monkeypatch):
    monkeypatch.setattr(hub, "_hub_answers", lambda: pytest.fail("the hub was asked"))
    assert class_count(load_model("resnet10t", pretrained=False, num_classes=4)) == 4


def test_the_hub_answers_where_its_port_does(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub._hub_answers()
    assert not hub._hub_answers()
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"http": "http://proxy"})
    assert hub._hub_answers()


# --- what a model is asked --------------------------------------------------------------------------------------------

SHAPES = {
    "the bundled one": (lambda: load_model("bundled"), (1, 28, 28), 10),
    "another stem than that of the weights": (
        lambda: timm.create_model("resnet10t", in_chans=1, num_classes=3), (1, 176, 176), 3
    ),
    "another size than that of the weights": (
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1), (3, 32, 32), 1000
    ),
    "features alone": (lambda: timm.create_model("resnet10t", num_classes=0), (3, 176, 176), None),
    "not timm's": (lambda: nn.Linear(4, 2), (3, 224, 224), None),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHAPES)
def test_shape_and_classes_are_those_the_model_was_built_for(kind):
    make, shape, classes = SHAPES[kind]
    model = make()
    assert (input_shape(model), class_count(model)) == (shape, classes)


def test_a_model_of_transformers_says_its_classes_in_its_config():
    model = nn.Linear(4, 2)
    model.config = type("Config", (), {"num_labels": 91})()
    assert class_count(model) == 91


def test_a_model_in_one_line():
    assert describe_model(load_model("bundled")) == "VisionTransformer, 1.2 M parameters, 1×28×28 pixels, 10 classes"
    assert describe_model(nn.Linear(4, 2)) == "Linear, 10 parameters, 3×224×224 pixels, unknown classes"


@pytest.mark.parametrize(
    ("word", "said"), [("wodfisher", " Did you mean woodfisher?"), ("capp", " Did you mean cap?"), ("xyz", "")]
)
def test_near_misses_are_offered(word, said):
    assert nearest(word, ["magnitude", "woodfisher", "cap"]) == said
