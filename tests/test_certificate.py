import random
import re
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_checkpoint import Tied, prune_half, reseal, tiny

from secateur.certificate import inspect, inspect_all
from secateur.checkpoint import load_masks, save
from secateur.errors import InputError
from secateur.manifest import read_manifest, write_manifest
from secateur.tensor_files import pack_mask

LAYER = "blocks.1.mlp.fc2.weight"
FILES = ["model.safetensors", "masks.safetensors", "config.json", "secateur.json"]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    model, folder = tiny(), tmp_path_factory.mktemp("template") / "run"
    save(model, prune_half(model, "blocks"), folder, {"method": "cap"})
    return folder


@pytest.fixture
def run(template, tmp_path):
    return shutil.copytree(template, tmp_path / "run")


def change_weight(run, value, dropped, name=LAYER):
    tensors, mask = load_file(run / "model.safetensors"), load_masks(run)[LAYER]
    tensors[name][tuple((~mask if dropped else mask).nonzero()[0])] = value
    save_file(tensors, run / "model.safetensors", {"format": "pt"})
    reseal(run, "model.safetensors")


def write_masks(run, change):
    path = run / "masks.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        header = dict(file.metadata())
    change(tensors, header)
    save_file(tensors, path, header)
    reseal(run, "masks.safetensors")


def edit_manifest(run, change):
    manifest = read_manifest(run)
    change(manifest)
    write_manifest(run, manifest)


def row(manifest, name=LAYER):
    return next(row for row in manifest["layers"] if row["name"] == name)


def test_an_untouched_run_is_certified(run):
    certificate, masks = inspect(run), load_masks(run)
    assert certificate.ok and certificate.problems == [] and certificate.pattern == "unstructured"
    assert certificate.zeros == sum(int((~m).sum()) for m in masks.values())
    assert certificate.sparsity == certificate.zeros / certificate.total
    assert [layer["name"] for layer in certificate.layers] == list(masks)
    assert list(certificate.as_dict()) == [
        "zeros", "total", "sparsity", "pattern", "groups", "ok", "layers", "problems"
    ]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_byte_flipped_anywhere_is_found(run, name):
    data, chance = (run / name).read_bytes(), random.Random(name)
    for place in [0, len(data) - 1, *(chance.randrange(len(data)) for _ in range(25))]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << chance.randrange(8)
        (run / name).write_bytes(flipped)
        assert not inspect(run).ok, place
    (run / name).write_bytes(data)
    assert inspect(run).ok


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 1, 7, 100, -1])
def test_a_truncated_file_is_a_problem(run, name, keep):
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[:keep])
    certificate = inspect(run)
    assert not certificate.ok and any(name in problem for problem in certificate.problems)


@pytest.mark.parametrize("name", FILES[:3])
def test_a_missing_file_is_a_problem(run, name):
    (run / name).unlink()
    certificate = inspect(run)
    assert not certificate.ok and any(f"{name} does not exist" in problem for problem in certificate.problems)


def set_zeros(m):
    row(m)["zeros"] -= 1


def drop_row(m):
    m["layers"].remove(row(m))


def rename_row(m):
    row(m)["name"] = "blocks.9.weight"


def repeat_row(m):
    m["layers"].append(row(m))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_zeros, f"{LAYER}: .* weights are zero, secateur.json says"),
        (lambda m: m.update(total=m["total"] + 1), "weights are zero, secateur.json says"),
        (lambda m: m.update(sparsity=0.9), r"The sparsity is .*, secateur.json says 0\.9"),
        (lambda m: m.update(pattern="2:4"), "The pattern is unstructured, secateur.json says '2:4'"),
        (drop_row, f"{LAYER}: secateur.json does not list this layer"),
        (rename_row, r"blocks\.9\.weight: model.safetensors has no floating-point weight of this name"),
        (repeat_row, "lists a layer twice"),
        (lambda m: m["files"]["config.json"].update(bytes=1), "config.json has .* bytes, secateur.json says 1"),
        (lambda m: m.update(zeros="many"), "zeros should be of type int"),
    ],
)
def test_an_edited_manifest_is_found_even_when_sealed_again(run, change, message):
    edit_manifest(run, change)
    certificate = inspect(run)
    assert not certificate.ok and any(re.search(message, p) for p in certificate.problems)


def flip_bit(tensors, header):
    tensors[LAYER][0] ^= 128


def drop_mask(tensors, header):
    del tensors[LAYER]
    header["shapes"] = header["shapes"].replace(f'"{LAYER}"', '"other.weight"')
    tensors["other.weight"] = pack_mask(torch.ones(32, 128, dtype=torch.bool))


def turn_mask(tensors, header):
    header["shapes"] = header["shapes"].replace("[32, 128]", "[128, 32]")


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (flip_bit, ["1 weights that the mask (drops are not zero|keeps are zero, secateur.json says 0)"]),
        (drop_mask, [f"{LAYER}: masks.safetensors has no mask", r"other\.weight: model.safetensors has no floating"]),
        (turn_mask, [rf"{LAYER}: the mask has shape \[128, 32\], the weight \[32, 128\]"]),
    ],
)
def test_a_changed_mask_is_found_even_when_its_hash_is_fixed(run, change, messages):
    write_masks(run, change)
    found = "\n".join(inspect(run).problems)
    assert all(re.search(message, found) for message in messages), found


@pytest.mark.parametrize(
    ("value", "dropped", "message"),
    [
        (0.5, True, "1 weights that the mask drops are not zero"),
        (0.0, False, "1 weights that the mask keeps are zero, secateur.json says 0"),
        (float("nan"), False, "1 weights are NaN or infinite"),
        (float("-inf"), True, "1 weights are NaN or infinite"),
    ],
)
def test_a_changed_weight_is_found_even_when_its_hash_is_fixed(run, value, dropped, message):
    change_weight(run, value, dropped)
    certificate = inspect(run)
    assert not certificate.ok and any(f"{LAYER}: {message}" in problem for problem in certificate.problems)


def test_a_weight_that_is_no_float_is_a_problem(run):
    tensors = load_file(run / "model.safetensors")
    save_file({**tensors, LAYER: tensors[LAYER].to(torch.float8_e4m3fn)}, run / "model.safetensors")
    reseal(run, "model.safetensors")
    assert any("no floating-point weight of this name" in problem for problem in inspect(run).problems)


def test_dense_models_and_negative_zeros_are_certified(tmp_path):
    model = Tied()
    save(model, {}, tmp_path / "dense")
    assert inspect(tmp_path / "dense").ok and inspect(tmp_path / "dense").sparsity == 0.0
    masks = {"third.weight": torch.zeros(4, 4, dtype=torch.bool)}
    model.third.weight.data.fill_(-0.0)
    save(model, masks, tmp_path / "empty")
    assert inspect(tmp_path / "empty").ok and inspect(tmp_path / "empty").sparsity == 1.0


def test_all_runs_beneath_a_folder_are_inspected(template, tmp_path):
    for name in ("50", "checkpoints/cap-75", "checkpoints/broken", "checkpoints/.cap-90.part"):
        shutil.copytree(template, tmp_path / name)
    (tmp_path / "checkpoints" / "broken" / "secateur.json").unlink()
    (tmp_path / "plots").mkdir()
    certificates = inspect_all(tmp_path)
    assert {name: c.ok for name, c in certificates.items()} == {
        "50": True,
        "checkpoints/broken": False,
        "checkpoints/cap-75": True,
    }
    assert list(inspect_all(template)) == ["."]


def test_a_folder_without_a_manifest_is_no_run(tmp_path):
    with pytest.raises(InputError, match=r"is no run directory: it should hold secateur\.json, model\.safetensors"):
        inspect(tmp_path)
    with pytest.raises(InputError, match="holds no run directory"):
        inspect_all(tmp_path)


@pytest.mark.parametrize("function", [inspect, inspect_all])
def test_a_folder_that_is_not_there_is_told(function):
    with pytest.raises(InputError, match=r"There is no folder nowhere; give one that secateur wrote\."):
        function("nowhere")
