"""N:M in run directories: what the manifest says of each layer, and that no broken group goes unnoticed."""

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_certificate import edit_manifest, row, write_masks
from test_checkpoint import reseal, tiny

from secateur import InputError, prune_
from secateur.certificate import inspect
from secateur.checkpoint import load, load_masks, save
from secateur.manifest import read_manifest
from secateur.patterns import NM
from secateur.tensor_files import pack_mask

CONV, LINEAR, SMALL = (
    "stages.1.downsample.1.weight",
    "stages.2.blocks.0.mlp.fc2.weight",
    "stages.0.blocks.0.mlp.fc1.weight",
)
TABLE = {"stages.0.*": "1:16", "stages.1.downsample.1": "4:8", "stages.3.*": 0.5, "*": "2:4"}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    model, folder = tiny("convnext"), tmp_path_factory.mktemp("patterns") / "run"
    save(model, prune_(model, None, "magnitude", TABLE), folder)
    return folder


@pytest.fixture
def run(template, tmp_path):
    return shutil.copytree(template, tmp_path / "run")


def damage(run, name, places, mask_too):
    """Weights that are not zero any more at these places of a layer; with the mask, only the pattern tells."""
    tensors, masks = load_file(run / "model.safetensors"), load_masks(run)
    for place in places:
        tensors[name][place] = 0.5
        masks[name][place] = True
    save_file(tensors, run / "model.safetensors", {"format": "pt"})
    reseal(run, "model.safetensors")
    if mask_too:
        write_masks(run, lambda packed, header: packed.update({name: pack_mask(masks[name])}))


def dropped(run, name, pattern, group=0):
    """Where a group of a layer has a zero."""
    zeros = (~load_masks(run)[name]).nonzero()
    return tuple(zeros[[int(place[1]) // pattern.of == group for place in zeros]][0].tolist())


def test_the_manifest_names_the_pattern_of_every_layer(template):
    manifest = read_manifest(template)
    patterns = {layer["name"]: layer["pattern"] for layer in manifest["layers"]}
    assert (patterns[CONV], patterns[LINEAR], patterns[SMALL]) == ("4:8", "2:4", "unstructured")
    assert manifest["pattern"] == "1:16, 4:8, 2:4, unstructured" and manifest["run"]["sparsity"] == TABLE
    assert {n["name"]: n["left_out"] for n in manifest["layers"] if "left_out" in n} == {
        SMALL: "its 8 input channels are no multiple of 16"
    }


def test_every_group_is_counted_and_found_to_hold(template):
    certificate, masks = inspect(template), load_masks(template)
    assert certificate.ok and certificate.pattern == "1:16, 4:8, 2:4, unstructured"
    for layer in certificate.layers:
        of = int(layer["pattern"].split(":")[1]) if ":" in layer["pattern"] else None
        assert layer["held"] == layer["groups"] == (masks[layer["name"]].numel() // of if of else None)
    assert certificate.groups["4:8"] == {"groups": 16 * 4, "held": 16 * 4}
    assert certificate.groups.keys() == {"1:16", "4:8", "2:4"}


@pytest.mark.parametrize("mask_too", [True, False])
@pytest.mark.parametrize(("name", "pattern"), [(CONV, NM(4, 8)), (LINEAR, NM(2, 4))])
def test_damage_to_one_group_is_found_and_named(run, name, pattern, mask_too):
    place = dropped(run, name, pattern)
    damage(run, name, [place], mask_too)
    certificate, total = inspect(run), 64 if name == CONV else 24 * 96 // 4
    index = [place[0], f"0:{pattern.of}", *(place[2:])]
    where = re.escape(str(index).replace("'", ""))
    told = rf"{name}: 1 of {total} groups break {pattern}, the first at {where}, where {pattern.keep + 1} .* kept\."
    assert not certificate.ok and any(re.fullmatch(told, problem) for problem in certificate.problems)
    assert certificate.groups[str(pattern)]["held"] == certificate.groups[str(pattern)]["groups"] - 1


def test_a_broken_mask_alone_is_found(run):
    masks, place = load_masks(run), dropped(run, LINEAR, NM(2, 4), group=3)
    masks[LINEAR][place] = True
    write_masks(run, lambda packed, header: packed.update({LINEAR: pack_mask(masks[LINEAR])}))
    assert any(f"1 of 576 groups break 2:4, the first at [{place[0]}, 12:16, 0, 0]" in p for p in inspect(run).problems)


def test_a_group_with_more_zeros_than_it_must_have_holds(run):
    tensors, masks = load_file(run / "model.safetensors"), load_masks(run)
    tensors[LINEAR][0, :4] = 0
    save_file(tensors, run / "model.safetensors", {"format": "pt"})
    reseal(run, "model.safetensors")
    certificate = inspect(run)
    assert not certificate.ok and not any("break" in problem for problem in certificate.problems)
    assert masks[LINEAR][0, :4].sum() == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: row(m, LINEAR).update(pattern="1:4"), f"{LINEAR}: 576 of 576 groups break 1:4, the first at"),
        (lambda m: row(m, LINEAR).update(pattern="2:5"), f"{LINEAR} cannot be 2:5: its 96 input channels are no mult"),
        (lambda m: row(m, LINEAR).update(pattern="2of4"), f"{LINEAR}: the pattern '2of4' is none that can be checked"),
        (lambda m: row(m, LINEAR).update(pattern="4:4"), f"{LINEAR}: the pattern '4:4' is none that can be checked"),
        (lambda m: row(m, LINEAR).update(pattern="unstructured"), ""),  # says less, and nothing false
        (
            lambda m: row(m, CONV).update(pattern="unstructured"),
            "The pattern is 1:16, unstructured, 2:4, secateur.json",
        ),
        (lambda m: m.update(pattern="2:4"), "The pattern is 1:16, 4:8, 2:4, unstructured, secateur.json says '2:4'"),
        (lambda m: row(m, LINEAR).update(pattern=24), r"layers\[\d+\]\.pattern should be text"),
        (lambda m: row(m, LINEAR).update(left_out=True), r"layers\[\d+\]\.left_out should be text"),
    ],
)
def test_an_edited_pattern_is_found_even_when_sealed_again(run, change, message):
    edit_manifest(run, change)
    certificate = inspect(run)
    assert certificate.ok == (not message) and any(re.search(message, p) for p in [*certificate.problems, ""])


def test_a_pattern_of_what_has_no_input_channels_cannot_be(tmp_path):
    model = tiny()
    save(model, {"norm.bias": torch.ones(32, dtype=torch.bool)}, tmp_path / "run")
    edit_manifest(tmp_path / "run", lambda m: row(m, "norm.bias").update(pattern="2:4"))
    assert "norm.bias cannot be 2:4: it has no input channels." in inspect(tmp_path / "run").problems


def test_a_pattern_of_a_weight_without_entries_holds(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    model.empty = torch.nn.Parameter(torch.zeros(3, 0))
    save(model, {"empty": torch.ones(3, 0, dtype=torch.bool)}, tmp_path / "run")
    edit_manifest(tmp_path / "run", lambda m: row(m, "empty").update(pattern="2:4") or m.update(pattern="2:4"))
    assert inspect(tmp_path / "run").ok and inspect(tmp_path / "run").groups == {"2:4": {"groups": 0, "held": 0}}


def test_a_manifest_without_patterns_of_layers_is_read_as_unstructured(run):
    def forget(manifest):
        manifest["pattern"] = "unstructured"
        for layer in manifest["layers"]:
            layer.pop("pattern"), layer.pop("left_out", None)

    edit_manifest(run, forget)
    certificate = inspect(run)
    assert certificate.ok and certificate.pattern == "unstructured" and certificate.groups == {}
    assert load(run)[1].keys() == {layer["name"] for layer in certificate.layers}


def test_masks_that_break_their_pattern_are_not_saved(tmp_path):
    model = tiny("convnext")
    result = prune_(model, None, "magnitude", "2:4", layers=LINEAR)
    with torch.no_grad():
        model.get_parameter(LINEAR).fill_(1.0)
    result.masks[LINEAR].fill_(True)
    with pytest.raises(InputError, match=f"{LINEAR}: the mask breaks 2:4 in 576 groups; save it without that pattern"):
        save(model, result, tmp_path / "run")
    assert not list(tmp_path.iterdir())
