"""Runs that end before their time: killed at any moment, and by everything that can go wrong around them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small import a_model, a_recipe, a_run, trained

from secateur.data.prepare import Preparation
from secateur.errors import InputError
from secateur.training import loop, resume
from secateur.training.journal import read_journal
from secateur.training.loop import train_
from secateur.training.resume import checkpoints, resume_, start_

HERE = Path(__file__).parent
KILLED = HERE / "killed.py"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return a_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory):
    """The folder of a run with averaged weights that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    trained(a_recipe(tiny, *CHANGES), out)
    return out


CHANGES = ("ema=0.8", "checkpoints={every: 1, unit: steps, keep: 2}")


def assert_same_run(out, expected):
    """The same bits in every model, and the same journal but for the seconds."""
    for name in ("0.5", "0.75", "0.9"):
        own, other = (load_file(folder / name / "model.safetensors") for folder in (out, expected))
        assert own.keys() == other.keys() and all(torch.equal(own[n], other[n]) for n in own)
    for entries in zip(*(read_journal(folder / "metrics.csv") for folder in (out, expected)), strict=True):
        assert len({(e.step, e.kind, e.top1, e.eval_loss, e.sparsity, e.learning_rate) for e in entries}) == 1
    last, other = (load_file(checkpoints(folder)[0] / "optimizer.safetensors") for folder in (out, expected))
    assert all(torch.equal(last[n], other[n]) for n in last)


class Stop(BaseException):
    """As good as a kill, within one process."""


# --- taken up again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 4, 6, 11])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(step, tiny, uninterrupted, tmp_path):
    def stop(entry):
        if entry.step == step:
            raise Stop

    with pytest.raises(Stop):
        trained(a_recipe(tiny, *CHANGES), tmp_path / "run", [stop])
    torch.manual_seed(99), np.random.seed(99)  # what generators of the new process hold does not matter
    trained(a_recipe(tiny, *CHANGES), tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


MOMENTS = ["step 3", "prune 2", "file 7", "rename 5", "model 1"]


def kills(moments, model, out):
    """One child after another, each killed at its moment; the last comes to its end."""
    command = [sys.executable, KILLED, model, out, json.dumps(moments), json.dumps(CHANGES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [int(line) for line in done.stdout.split()]


def test_a_run_killed_again_and_again_goes_on_to_the_same_bits(tiny, uninterrupted, tmp_path):
    ends = kills(MOMENTS, tiny, tmp_path / "run")
    assert ends == [-signal.SIGKILL] * len(MOMENTS) + [0]
    assert_same_run(tmp_path / "run", uninterrupted)
    assert not [*tmp_path.rglob("*.part")]


@pytest.mark.slow
def test_a_run_killed_at_twenty_random_moments_goes_on_to_the_same_bits(tiny, uninterrupted, tmp_path):
    moments = [f"after {seconds:.3f}" for seconds in np.random.default_rng(0).uniform(0.0, 0.06, 20)]
    assert kills(moments, tiny, tmp_path / "run").count(-signal.SIGKILL) > 15  # the last ones may come after the end
    assert_same_run(tmp_path / "run", uninterrupted)


def test_a_checkpoint_that_was_damaged_is_stepped_over(tiny, uninterrupted, tmp_path):
    def stop(entry):
        if entry.step == 7:
            raise Stop

    with pytest.raises(Stop):
        trained(a_recipe(tiny, *CHANGES), tmp_path / "run", [stop])
    last, before = checkpoints(tmp_path / "run")
    with (last / "model.safetensors").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"xyz")
    run = a_run(a_recipe(tiny, *CHANGES), tmp_path / "run")
    assert resume_(run) == before
    train_(run)
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize("damage", ["secateur.json", "optimizer.safetensors"])
def test_a_checkpoint_without_all_its_files_is_none(damage, tiny, tmp_path):
    run = a_run(a_recipe(tiny), tmp_path / "run")
    start_(run)
    resume.write_checkpoint(run)
    (checkpoints(run.out)[0] / damage).unlink()
    assert resume_(a_run(a_recipe(tiny), tmp_path / "run")) is None


def test_a_run_without_a_checkpoint_starts_from_the_beginning(tiny, tmp_path):
    run = a_run(a_recipe(tiny), tmp_path / "run")
    start_(run)
    assert resume_(run) is None and run.step == 0


def test_only_the_last_checkpoints_are_kept(tiny, uninterrupted):
    assert [path.name for path in checkpoints(uninterrupted)] == ["step-00000012", "step-00000011"]


def test_another_recipe_is_not_taken_up(tiny, tmp_path):
    trained(a_recipe(tiny), tmp_path / "run")
    with pytest.raises(
        InputError, match=r"holds a run with learning_rate\.highest: 0\.001, and the recipe now says 0\.002"
    ):
        trained(a_recipe(tiny, "learning_rate.highest=2e-3"), tmp_path / "run")
    assert trained(a_recipe(tiny, "checkpoints.keep=5"), tmp_path / "run").step == 12  # changes no bit


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "adafactorbv", "lamb"])
def test_the_state_of_an_optimizer_comes_back_from_its_checkpoint(optimizer, tiny, tmp_path):
    run = trained(a_recipe(tiny, f"optimizer={optimizer}", "epochs=1", "gradual.targets=[0.5]"), tmp_path / "run")
    again = a_run(run.recipe, tmp_path / "run")
    resume_(again)
    own, other = (r.optimizer.state_dict() for r in (run, again))
    for index, values in own["state"].items():
        for name, value in values.items():
            found = other["state"][index][name]
            assert torch.equal(value, found) if isinstance(value, torch.Tensor) else value == found


def test_an_optimizer_that_keeps_what_no_file_can_hold_is_refused(tiny, tmp_path):
    run = a_run(a_recipe(tiny), tmp_path / "run")
    start_(run)
    run.optimizer.state[run.model.head.bias]["history"] = [1]
    with pytest.raises(InputError, match=r"The optimizer keeps a list \(history\)"):
        resume.write_checkpoint(run)


# --- what goes wrong around it ----------------------------------------------------------------------------------------


def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_is_whole(tiny, uninterrupted, tmp_path, monkeypatch):
    run = a_run(a_recipe(tiny, *CHANGES), tmp_path / "run")
    start_(run)

    def full(tensors, path, header):
        if run.step == 6:
            raise OSError(28, "No space left on device")
        write(tensors, path, header)

    write = resume.write_tensors
    monkeypatch.setattr(resume, "write_tensors", full)
    with pytest.raises(InputError, match=r"The disk is full: writing .*step-00000006"):
        train_(run)
    monkeypatch.undo()
    trained(a_recipe(tiny, *CHANGES), tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


def a_folder_run(tmp_path, workers):
    from PIL import Image

    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in map(str, range(10)):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(4):
                pixels = random.integers(0, 256, (28, 28), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{number}.png")
    model = a_model(tmp_path / "model")
    data = f"{{data_dir: {tmp_path / 'images'}, workers: {workers}}}"
    return a_run(a_recipe(model, f"data={data}"), tmp_path / "run")


def test_images_that_vanish_are_one_sentence_and_the_last_checkpoint_is_whole(tmp_path):
    run = a_folder_run(tmp_path, workers=0)
    start_(run)
    run.journal.listeners.append(lambda e: e.step == 3 and (tmp_path / "images").rename(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"images/train/\d/\d\.png cannot be read as an image \(.*No such file"):
        train_(run)
    assert resume_(run) == checkpoints(run.out)[0]


def test_a_worker_that_dies_is_one_sentence_and_the_last_checkpoint_is_whole(tmp_path):
    run = a_folder_run(tmp_path, workers=1)
    start_(run)
    resume.write_checkpoint(run)
    run.feed.dataset.prepare = Deadly(**vars(run.feed.dataset.prepare))
    with pytest.raises(InputError, match=r"A process that reads .* was killed, most often for want of memory"):
        train_(run)
    assert resume_(run) == checkpoints(run.out)[0]


class Deadly(Preparation):
    """Ends its process, as the system does when memory runs out."""

    def __call__(self, name, image, label, position):
        os.kill(os.getpid(), signal.SIGKILL)


def test_images_that_cannot_be_read_are_left_out_where_the_recipe_says_so(tmp_path):
    run = a_folder_run(tmp_path, workers=0)
    path = next((tmp_path / "images" / "train").glob("*/*.png"))
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"cannot be read as an image .*skip-unreadable"):
        list(run.feed.batches(0, 6))
    data = f"data={{data_dir: {tmp_path / 'images'}, workers: 0, skip_unreadable: true}}"
    skipping = a_run(a_recipe(tmp_path / "model", data), tmp_path / "run")
    sizes = {len(labels) for ((_, labels),) in skipping.feed.batches(0, 6)}
    assert sizes == {14, 16}  # in pairs
    assert list(skipping.feed.skipped) == [str(path)]
    for image in (tmp_path / "images" / "train").glob("*/*.png"):
        image.write_bytes(b"nothing")
    with pytest.raises(InputError, match="None of the 16 images of a batch"):
        list(skipping.feed.batches(0, 2))


def test_the_loop_is_the_whole_of_it():
    assert len(Path(loop.__file__).read_text().splitlines()) < 190
