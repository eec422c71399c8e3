"""However little memory there is, the Fishers are the same; they are made in turns and wait on the disk."""

import logging

import pytest
import torch
from torch import nn

from secateur import Resources, curvature
from secateur.curvature import collect
from secateur.errors import InputError
from secateur.layers import prunable_weights
from secateur.solvers import BlockFishers

KIB = 1024
TWELVE, SIXTEEN = BlockFishers(12), BlockFishers(16)


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5))
    batches = [(torch.randn(9, 16, generator=generator), torch.arange(9) % 5) for _ in range(4)]
    return model, batches, prunable_weights(model)


@pytest.fixture
def only(monkeypatch):
    """Let the Fishers have only so many bytes: the process itself is counted as nothing."""

    def limit(count, folder):
        for name in ("held_bytes", "most_held_bytes"):
            monkeypatch.setattr(curvature, name, lambda device: 0)
        return Resources(memory=count, spill=folder)

    return limit


@pytest.mark.parametrize(("room", "passes"), [(80 * KIB, 1), (60 * KIB, 2), (40 * KIB, 3)])
def test_the_fishers_are_the_same_however_many_passes_they_take(problem, only, tmp_path, caplog, room, passes):
    model, batches, weights = problem
    caplog.set_level(logging.INFO, "secateur")
    truth = collect(model, batches, weights, [TWELVE, SIXTEEN])
    found = collect(model, batches, weights, [TWELVE, SIXTEEN], resources=only(room, tmp_path))
    for size, whole in truth.items():
        assert (found[size].gradients, found[size].sizes) == (whole.gradients, whole.sizes)
        assert found[size].mean_diagonal == pytest.approx(whole.mean_diagonal)
        assert all(found[size][name].equal(whole[name]) for name in weights)
    assert ("so one pass" if passes == 1 else f"so {passes} passes, waiting in {tmp_path}") in caplog.text


def test_what_waited_on_the_disk_is_gone_with_its_curvature(problem, only, tmp_path):
    model, batches, weights = problem
    found = collect(model, batches, weights, [SIXTEEN], resources=only(20 * KIB, tmp_path))
    assert len(list(tmp_path.rglob("*.bin"))) == len(weights)
    del found
    assert not list(tmp_path.iterdir())


def test_batches_that_come_once_are_kept_for_the_later_passes(problem, only, tmp_path):
    model, batches, weights = problem
    for room in (60 * KIB, 20 * KIB):
        found = collect(model, iter(batches), weights, [SIXTEEN], resources=only(room, tmp_path))
        assert found[SIXTEEN].gradients == 36
        assert found[SIXTEEN]["0.weight"].equal(collect(model, batches, weights, [SIXTEEN])[SIXTEEN]["0.weight"])


def test_nothing_is_left_on_the_disk_after_a_failure_in_the_middle(problem, only, tmp_path):
    model, batches, weights = problem
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) > 40:
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(KeyboardInterrupt):
        collect(model, batches, weights, [SIXTEEN], loss=loss, resources=only(20 * KIB, tmp_path))
    assert not list(tmp_path.iterdir())


def test_passes_in_bfloat16_give_nearly_the_same_fisher(problem):
    model, batches, weights = problem
    truth = collect(model, batches, weights, [SIXTEEN])[SIXTEEN]
    found = collect(model, batches, weights, [SIXTEEN], resources=Resources(precision="bfloat16"))[SIXTEEN]
    for name in weights:
        assert not found[name].equal(truth[name])
        assert (found[name] - truth[name]).norm() < 0.05 * truth[name].norm()
        assert found[name].dtype == torch.float32


def test_a_layer_without_room_says_what_would_be_enough(problem, only, tmp_path):
    model, batches, weights = problem
    with pytest.raises(InputError, match=r"Fisher of 2.weight takes .* allow .* of memory, or try smaller batches"):
        collect(model, batches, weights, [SIXTEEN], resources=only(8 * KIB, tmp_path))
