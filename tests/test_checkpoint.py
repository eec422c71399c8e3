import json
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from secateur.checkpoint import load, load_masks, save
from secateur.errors import InputError
from secateur.manifest import read_manifest, write_manifest
from secateur.tensor_files import describe_file, pack_mask, unpack_mask

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
MODELS = {
    "vit": ("vit_tiny_patch16_224", VIT, 32),
    "vit with one channel and mean pooling": (
        "vit_tiny_patch16_224",
        {**VIT, "in_chans": 1, "global_pool": "avg", "class_token": False},
        32,
    ),
    "resnet": ("resnet10t", {"num_classes": 3}, 64),
    "convnext": ("convnext_atto", {"num_classes": 3, "depths": [1, 1, 1, 1], "dims": [8, 16, 24, 32]}, 64),
}


def tiny(kind="vit"):
    name, arguments, _ = MODELS[kind]
    torch.manual_seed(0)
    return timm.create_model(name, **arguments).eval()


def prune_half(model, match="."):
    masks = {}
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and name.endswith("weight") and match in name:
            masks[name] = torch.rand(weight.shape) > 0.5
            weight.data *= masks[name]
    return masks


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("view", self.third.weight.detach()[1:3])
        self.register_buffer("steps", torch.tensor(3))


@pytest.fixture
def saved(tmp_path):
    model = tiny()
    masks = prune_half(model, "blocks")
    save(model, masks, tmp_path / "run", {"method": "cap", "seed": 0, "predicted_loss_increase": float("nan")})
    return SimpleNamespace(folder=tmp_path / "run", model=model, masks=masks)


def reseal(folder, name):
    """Make the manifest vouch for a file that was changed."""
    manifest = read_manifest(folder)
    manifest["files"][name] = describe_file(folder / name)
    write_manifest(folder, manifest)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("reader", ["timm", "secateur"])
def test_the_saved_model_gives_the_same_logits_bit_for_bit(tmp_path, kind, reader):
    model = tiny(kind)
    masks = prune_half(model)
    save(model, masks, tmp_path / "run")
    local = f"local-dir:{tmp_path / 'run'}"
    again = timm.create_model(local, pretrained=True).eval() if reader == "timm" else load(tmp_path / "run")[0]
    channels = MODELS[kind][1].get("in_chans", 3)
    images = torch.randn(2, channels, MODELS[kind][2], MODELS[kind][2])
    with torch.inference_mode():
        assert torch.equal(model(images), again(images))


def test_masks_and_manifest_come_back(saved):
    model, masks = load(saved.folder)
    assert not model.training and list(masks) == list(saved.masks)
    assert all(torch.equal(masks[name], saved.masks[name]) for name in masks)
    manifest = read_manifest(saved.folder)
    assert manifest["run"] == {"method": "cap", "seed": 0, "predicted_loss_increase": None}
    assert manifest["zeros"] == sum(int((~m).sum()) for m in masks.values())
    assert manifest["sparsity"] == manifest["zeros"] / manifest["total"] and manifest["pattern"] == "unstructured"
    assert manifest["model"]["kind"] == "timm" and manifest["versions"]["torch"] == torch.__version__.split("+")[0]


def test_whoever_may_read_a_new_file_may_read_every_file_of_a_run(saved, tmp_path):
    (tmp_path / "new").touch()
    modes = {file.stat().st_mode for file in (tmp_path / "new", *saved.folder.iterdir())}
    assert len(modes) == 1


def test_a_result_brings_its_masks_and_its_manifest(tmp_path):
    model = tiny()
    result = SimpleNamespace(masks=prune_half(model), manifest=lambda: {"method": "magnitude", "seed": 0})
    save(model, result, tmp_path / "run", {"seed": 1})
    assert read_manifest(tmp_path / "run")["run"] == {"method": "magnitude", "seed": 1}


def test_kept_weights_that_are_zero_are_counted_apart(tmp_path):
    model = tiny()
    masks = prune_half(model, "fc1")
    weight, mask = model.blocks[0].mlp.fc1.weight, masks["blocks.0.mlp.fc1.weight"]
    weight.data[mask.nonzero()[0][0], mask.nonzero()[0][1]] = 0
    save(model, masks, tmp_path / "run")
    row = read_manifest(tmp_path / "run")["layers"][0]
    assert row == {
        "name": "blocks.0.mlp.fc1.weight",
        "zeros": int((~mask).sum()) + 1,
        "total": mask.numel(),
        "kept_zeros": 1,
        "pattern": "unstructured",
    }


def test_tied_and_overlapping_tensors_of_any_module_are_saved_and_filled(tmp_path):
    model, other = Tied(), Tied()
    masks = prune_half(model, "first")
    save(model, masks, tmp_path / "run")
    again, _ = load(tmp_path / "run", other)
    assert again is other and again.first.weight is again.second.weight
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert json.loads((tmp_path / "run" / "config.json").read_text())["class"].endswith("test_checkpoint.Tied")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_model_comes_back_in_the_dtype_it_was_saved_in(tmp_path, dtype):
    model = tiny().to(dtype).to(memory_format=torch.channels_last)
    save(model, prune_half(model), tmp_path / "run")
    again, _ = load(tmp_path / "run")
    assert again.head.weight.dtype == dtype
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_a_timm_model_that_config_cannot_describe_must_be_passed_in(tmp_path):
    models = [tiny(), tiny()]
    for model in models:
        model.head = nn.Sequential(nn.Linear(32, 8), nn.Linear(8, 5))
    save(models[0], prune_half(models[0]), tmp_path / "run")
    with pytest.raises(
        InputError, match=r"holds a vit_tiny_patch16_224, not one of timm's or transformers'; pass the model"
    ):
        load(tmp_path / "run")
    assert torch.equal(load(tmp_path / "run", models[1])[0].head[1].weight, models[0].head[1].weight)


def test_an_argument_json_has_no_word_for_is_such_a_case(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", **VIT, act_layer=nn.ReLU)
    save(model, {}, tmp_path / "run")
    assert read_manifest(tmp_path / "run")["model"]["kind"] == "module"


@pytest.mark.parametrize(
    ("kind", "found"), [("vit", "timm"), ("resnet", "timm"), ("vit with one channel and mean pooling", "module")]
)
def test_without_recorded_arguments_those_that_show_are_used_and_verified(tmp_path, kind, found):
    model = tiny(kind)
    del model._model_args
    save(model, {}, tmp_path / "run")
    assert read_manifest(tmp_path / "run")["model"]["kind"] == found
    assert found == "module" or repr(load(tmp_path / "run")[0]) == repr(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda masks: {"blocks.0.attn.qvk.weight": next(iter(masks.values()))}, r"no such weight\. Did you mean"),
        (lambda masks: {n: m.float() for n, m in masks.items()}, r"is torch\.float32 .*should be torch\.bool"),
        (
            lambda masks: {n: m[1:] for n, m in masks.items()},
            r"The mask of blocks\.0\.attn\.qkv\.weight is .*should be",
        ),
        (lambda masks: {n: torch.zeros_like(m) for n, m in masks.items()}, r"qkv\.weight: \d+ weights .*not zero"),
    ],
)
def test_masks_that_disagree_with_the_weights_are_refused_before_writing(tmp_path, change, message):
    model = tiny()
    masks = prune_half(model, "blocks.0.attn.qkv")
    with pytest.raises(InputError, match=message):
        save(model, change(masks), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved_is_refused_before_writing(tmp_path):
    model = Tied()
    with pytest.raises(InputError, match="A Tensor cannot be written as JSON"):
        save(model, {}, tmp_path / "run", {"seed": torch.zeros(2)})
    with pytest.raises(InputError, match=r"steps is torch\.int64; a pruned weight is one of"):
        save(model, {"steps": torch.tensor(True)}, tmp_path / "run")
    with pytest.raises(InputError, match="is no tensor with data"):
        save(model.to("meta"), {}, tmp_path / "run")
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="exists already"):
        save(model, {}, tmp_path / "run")


def test_a_checkpoint_is_replaced_only_when_asked(saved):
    save(tiny("resnet"), {}, saved.folder, overwrite=True)
    assert read_manifest(saved.folder)["model"]["name"] == "resnet10t"


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*given, **options):
        raise SafetensorError("I/O error: No space left (os error 28)")

    monkeypatch.setattr("secateur.tensor_files.save_file", full)
    with pytest.raises(InputError, match=r"The disk is full: writing .*run needs"):
        save(tiny(), {}, tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.safetensors", "masks.safetensors", "config.json", "secateur.json"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-9], "is not the file|is damaged"),
        (lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:], "is not the file|was changed|is damaged"),
        (lambda data: None, "does not exist"),
    ],
)
def test_a_file_that_was_not_saved_is_refused(saved, name, damage, message):
    data = damage((saved.folder / name).read_bytes())
    (saved.folder / name).unlink()
    if data is not None:
        (saved.folder / name).write_bytes(data)
    with pytest.raises(InputError, match=f"{name}.*({message})"):
        load(saved.folder)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", 2, "format is 2, this version reads 1"),
        ("layers", {}, "layers should be of type list"),
        ("zeros", True, "zeros should be of type int"),
        ("layers", [{"name": "a", "zeros": 1.5, "total": 2}], r"layers\[0\] should hold a name, zeros and total"),
        ("files", {"../../etc/passwd": {}}, r"files should describe model\.safetensors"),
    ],
)
def test_a_manifest_with_wrong_fields_is_refused(saved, field, value, message):
    write_manifest(saved.folder, {**read_manifest(saved.folder), field: value})
    with pytest.raises(InputError, match=message):
        read_manifest(saved.folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "vit_tinny_patch16_224"}, r"timm has no model 'vit_tinny_patch16_224'\. Did you mean"),
        ({"architecture": ["vit"]}, "pass the model to fill"),
        ({"model_args": {"embed_dim": "many"}}, "does not describe a model that timm can build"),
        ({"model_args": {**VIT, "depth": 3}}, r"does not fit VisionTransformer: blocks\.2\S+ is missing"),
        ({"model_args": {**VIT, "depth": 1}}, r"does not fit VisionTransformer: blocks\.1\S+ is not in the model"),
        ({"model_args": {**VIT, "num_classes": 6}}, r"head\.weight has shape \(5, 32\), the model's has \(6, 32\)"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(saved, change, message):
    path = saved.folder / "config.json"
    config = json.loads(path.read_text())
    config["num_classes"] = change.get("model_args", VIT).get("num_classes", 5)
    path.write_text(json.dumps({**config, **change}))
    reseal(saved.folder, "config.json")
    with pytest.raises(InputError, match=message):
        load(saved.folder)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("", "no table of shapes"),
        ("[" * 100_000, "no table of shapes"),
        ('{"b": [4]}', "do not name the same layers"),
        ('{"a": [-4, 2]}', r"masks\.safetensors, a: the shape \[-4, 2\] is not a list of sizes"),
        ('{"a": [2, 5]}', r"1 bytes cannot be a mask of shape \[2, 5\]"),
        ('{"a": [3]}', "bits after the last weight are set"),
    ],
)
def test_damaged_masks_are_refused(tmp_path, shapes, message):
    save_file({"a": torch.tensor([255], dtype=torch.uint8)}, tmp_path / "masks.safetensors", {"shapes": shapes})
    with pytest.raises(InputError, match=message):
        load_masks(tmp_path)


def test_masks_of_another_dtype_and_pickles_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"one row of uint8, not 2-d torch\.float32"):
        unpack_mask(torch.zeros(2, 2), [4])
    torch.save({}, tmp_path / "masks.safetensors")
    with pytest.raises(InputError, match=r"masks\.safetensors is damaged"):
        load_masks(tmp_path)


def test_load_refuses_weights_that_the_mask_drops(saved):
    path = saved.folder / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path)
    reseal(saved.folder, "model.safetensors")
    with pytest.raises(InputError, match=r"blocks\.0\.attn\.qkv\.weight: \d+ weights that the mask drops are not zero"):
        load(saved.folder)


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (9, 3), (2, 3, 5, 5), (0, 4)])
def test_a_packed_mask_is_an_eighth_and_comes_back(shape):
    mask = torch.rand(shape) > 0.3
    packed = pack_mask(mask.transpose(0, -1).contiguous().transpose(0, -1))
    assert packed.numel() == -(-mask.numel() // 8) and torch.equal(unpack_mask(packed, list(shape)), mask)


def test_the_first_weight_is_the_highest_bit():
    assert pack_mask(torch.tensor([[True, False], [True, True]])).tolist() == [0b10110000]
    assert np.array_equal(pack_mask(torch.eye(3).bool()), np.packbits(np.eye(3, dtype=bool)))
