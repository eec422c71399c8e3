"""Training on two processes that gloo joins: the same masks and weights on both, and the gradients of all images."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from small import a_model, a_recipe, trained

from secateur.checkpoint import load_masks
from secateur.distributed import ALONE, PATIENCE, Processes
from secateur.training.journal import read_journal

HERE = Path(__file__).parent
CHANGES = ("augmentation=light1", "micro_batch=8", "ema=0.9", "gradual.targets=[0.5, 0.75]", "epochs=2")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return a_model(tmp_path_factory.mktemp("models") / "tiny")


def on_two(model, out, *changes, seconds=0):
    """The two processes' last states."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        HERE / "together.py",
    ]
    done = subprocess.run(
        [*command, model, out, json.dumps(changes), str(seconds)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [load_file(out / f"rank{rank}.safetensors") for rank in range(2)]


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return on_two(tiny, out, *CHANGES, seconds=10), out


def test_both_processes_end_with_the_same_masks_and_weights_though_one_outlasts_every_timeout(pair):
    first, second = pair[0]
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_every_sparsity_is_reached_exactly_and_written_once(pair):
    out = pair[1]
    for sparsity in (0.5, 0.75):
        masks = load_masks(out / f"{sparsity:g}")
        total = sum(mask.numel() for mask in masks.values())
        assert sum(int((~mask).sum()) for mask in masks.values()) == round(sparsity * total)
    steps = [entry.step for entry in read_journal(out / "metrics.csv") if entry.kind == "train"]
    assert steps == list(range(1, 9))


def test_two_processes_learn_what_one_does_from_the_same_images(pair, tiny, tmp_path):
    alone = trained(a_recipe(tiny, *CHANGES), tmp_path / "run")
    together = pair[0][0]
    for name, mask in alone.keeper.masks.items():
        assert (mask == together[f"mask {name}"]).float().mean() > 0.99  # but for ties of sums in another order
    own, other = (torch.cat([state[n].flatten() for n, _ in alone.model.named_parameters()]) for state in
                  (alone.model.state_dict(), together))  # fmt: skip
    assert (own - other).norm() < 0.02 * own.norm()
    entries = zip(*(read_journal(out / "metrics.csv") for out in (tmp_path / "run", pair[1])), strict=True)
    assert all(a.eval_loss == pytest.approx(b.eval_loss, rel=0.02) for a, b in entries if a.eval_loss is not None)


@pytest.mark.slow
def test_a_run_of_two_processes_is_taken_up_by_both(pair, tiny):
    again = on_two(tiny, pair[1], *CHANGES)
    assert all(torch.equal(again[rank][name], pair[0][rank][name]) for rank in range(2) for name in again[rank])


@pytest.fixture
def one_of_one():
    """A group of this process alone, that says it is the first of two where it asks nobody."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.new_group(backend="gloo", timeout=PATIENCE)
    dist.destroy_process_group()


def test_what_processes_exchange_is_what_each_gave_where_there_is_one(one_of_one):
    for processes in (ALONE, Processes(0, 1, one_of_one)):
        tensor = torch.arange(4.0)
        assert torch.equal(processes.sum_(tensor.clone()), tensor) and torch.equal(processes.copy_(tensor), tensor)
        assert torch.equal(processes.joined(tensor), tensor) and processes.agreed({"a": [1]}) == {"a": [1]}


def test_processes_join_rows_of_any_number_and_agree_on_the_first_ones_word(pair):
    for state in pair[0]:
        assert state["rows"].tolist() == [[0, 0], [1, 1], [1, 1]] and state["said"].tolist() == [5]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("things", [1, 6, 10])
def test_the_parts_of_the_processes_are_the_whole(count, things):
    parts = [list(range(things))[Processes(rank, count).part(things)] for rank in range(count)]
    assert [thing for part in parts for thing in part] == list(range(things))
