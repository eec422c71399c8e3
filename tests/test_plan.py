"""Groups of neighbouring layers, as few as fit, and what is said when none do."""

import shutil
from collections import namedtuple

import pytest
import torch

from secateur import plan
from secateur.errors import InputError
from secateur.plan import make_plan
from secateur.resources import Resources
from secateur.spill import Spill

NEEDS = {"a": 40, "b": 30, "c": 50, "d": 10}
FREE = namedtuple("usage", "total used free")


@pytest.mark.parametrize(
    ("room", "groups"),
    [(130, ["abcd"]), (129, ["abc", "d"]), (100, ["ab", "cd"]), (70, ["ab", "cd"]), (50, ["a", "b", "c", "d"])],
)
def test_layers_share_a_pass_with_their_neighbours_as_long_as_there_is_room(room, groups):
    made = make_plan(NEEDS, base=1000, budget=1000 + room)
    assert ["".join(group) for group in made.groups] == groups
    assert (made.folder is None) == (made.passes == 1)


def test_the_plan_says_passes_bytes_and_time(tmp_path):
    text = make_plan(NEEDS, 0, 70, tmp_path).describe(batches=64, seconds=4.0)
    assert text == f"Fisher: 130 bytes with 70 bytes free for it, so 2 passes, waiting in {tmp_path}; about 9 min."
    assert make_plan(NEEDS, 0, 130).describe(None, 4.0) == "Fisher: 130 bytes with 130 bytes free for it, so one pass."


def test_a_layer_too_large_for_the_memory_is_named():
    with pytest.raises(InputError, match=r"Fisher of c takes 50 bytes.*a batch leave 49 bytes; allow 150 bytes of"):
        make_plan(NEEDS, base=100, budget=149)


def test_a_disk_without_room_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: FREE(200, 180, 20))
    with pytest.raises(InputError, match=r"take 130 bytes .* has 20 bytes free; name a folder .* allow 140 bytes"):
        make_plan(NEEDS, base=10, budget=80, spill=tmp_path)


def test_a_file_system_in_memory_is_no_place_to_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_is_memory", lambda folder: True)
    with pytest.raises(InputError, match="lies in memory"):
        make_plan(NEEDS, 0, 70, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_spilled_comes_back_to_the_bit(tmp_path, dtype):
    spill, tensors = Spill(tmp_path), {name: torch.randn(3, 5, dtype=dtype) for name in "xy"}
    for name, tensor in tensors.items():
        spill.put(name, tensor)
    assert list(spill) == ["x", "y"] and len(spill) == 2
    assert all(spill[name].equal(tensor) for name, tensor in tensors.items())


def test_a_disk_that_fills_up_names_the_layer_and_the_folder(tmp_path, monkeypatch):
    spill = Spill(tmp_path)
    shutil.rmtree(spill._folder)
    with pytest.raises(InputError, match=r"Fisher of fc1 cannot wait in .*name a folder with more room"):
        spill.put("fc1", torch.ones(3))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be spilled to: No such file"):
        Spill(tmp_path / "missing")


def test_resources_refuse_what_they_cannot_mean(tmp_path):
    with pytest.raises(InputError, match="no precision 'half'; choose auto, float32, bfloat16"):
        Resources(precision="half")
    with pytest.raises(InputError, match="'much' is no amount of memory"):
        Resources(memory="much")
    with pytest.raises(InputError, match=r"no folder .*missing to spill to"):
        Resources(spill=tmp_path / "missing")
