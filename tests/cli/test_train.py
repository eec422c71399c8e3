import json

import pytest
import timm
import torch
from safetensors.torch import load_file

from secateur.cli.plan import IMAGENET
from secateur.training import estimate, run
from secateur.training.recipe_file import read_recipe, recipe_names

SHORT = [
    "--set", "epochs=2", "batch_size=16", "data.images=64", "data.eval_images=20", "learning_rate.cycle=1",
    "gradual.every=1", "gradual.targets=[0.5, 0.8]", "gradual.samples=16", "gradual.method=cap:block=16",
]  # fmt: skip


@pytest.fixture
def without_weights(monkeypatch):
    """Models that are only shapes, and a trial that takes no time."""
    made = run.starting_model

    def starting_model(recipe, pretrained=None):
        if recipe.model == "bundled":
            return made(recipe, pretrained)
        with torch.device("meta"):
            return timm.create_model(recipe.model, drop_path_rate=recipe.augmentation.drop_path)

    monkeypatch.setattr(run, "starting_model", starting_model)
    monkeypatch.setattr(estimate, "seconds_per_image", lambda model, most: 0.01)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_planned(name, call, without_weights):
    done = call("train", name, "--dry-run", "--json", "--device", "cpu")
    plan, recipe = json.loads(done.out), read_recipe(name)
    assert (
        done.code == 0 and plan["epochs"] == recipe.epochs and plan["steps"] == plan["steps_per_epoch"] * recipe.epochs
    )
    assert plan["images_assumed"] == (recipe.model != "bundled")
    assert plan["images"] == (recipe.data.images or 8192 if recipe.model == "bundled" else IMAGENET)
    if recipe.gradual:
        wanted = recipe.gradual.wanted()
        assert [c["sparsity"] for c in plan["changes"] if c["sparsity"] in wanted] == list(wanted)
    assert plan["saves"][-1]["step"] == plan["steps"] and plan["learning_rates"][0]["step"] == 0
    assert plan["seconds"] > 0.01 * plan["steps"] * recipe.batch_size


def test_a_plan_is_told_in_tables(call, without_weights):
    done = call("train", "deit-tiny-gradual", "--dry-run", "--device", "cpu")
    assert "deit_tiny_patch16_224: 300 epochs of 1,281,167 images (as ImageNet-1k; name data to count)" in done.out
    for words in (
        "Changes of the masks",
        "prune  40 %",
        "Models written",
        "Learning rates",
        "5.000e-04",
        "one process",
    ):
        assert words in done.out
    assert "Masks move 17 times" in call("train", "bundled-rigl", "--dry-run", "--device", "cpu").out


def test_the_recipes_are_listed(call):
    done = call("train", "--list")
    assert done.code == 0 and all(name in done.out for name in recipe_names())
    assert [row["name"] for row in json.loads(call("train", "--list", "--json").out)] == recipe_names()


@pytest.fixture(scope="module")
def trained(grey, tmp_path_factory):
    """The folder of a short run."""
    from secateur.cli import main

    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "bundled-gradual", "--model", str(grey), "--out", str(out), "--device", "cpu", *SHORT]) == 0
    return out


def test_a_run_leaves_models_metrics_the_recipe_and_a_report(trained):
    for name in (
        "0.5/secateur.json",
        "0.8/model.safetensors",
        "metrics.csv",
        "recipe.yaml",
        "report.html",
        "report.json",
    ):
        assert (trained / name).is_file(), name
    assert read_recipe(trained / "recipe.yaml").gradual.targets == (0.5, 0.8)
    page = (trained / "report.html").read_text()
    for words in ("Learning rate", "Zeros", "Top-1 accuracy", "What each change of the masks costs", "prune to 0.8"):
        assert words in page
    assert "nan" not in page.lower().replace("finan", "")


def test_a_run_that_is_there_is_only_taken_up_when_told_to(trained, grey, call):
    again = ["train", "bundled-gradual", "--model", grey, "--out", trained, "--device", "cpu", *SHORT]
    refused = call(*again)
    assert refused.code == 2 and "exists already; go on with --resume auto" in refused.err
    weights = load_file(trained / "0.8" / "model.safetensors")
    done = call(*again, "--resume", "auto")
    assert done.code == 0 and "Going on from" in done.err and "step 8 (epoch 2.00)" in done.err
    assert "0.8000" in done.out and "prune to 0.8" in done.out
    after = load_file(trained / "0.8" / "model.safetensors")
    assert all(torch.equal(weights[name], after[name]) for name in weights)


def test_runs_are_put_side_by_side(trained, call, tmp_path):
    done = call("report", trained, trained, "--out", tmp_path / "both")
    assert done.code == 0 and "cyclic linear (1)" in done.out and "cyclic linear (2)" in done.out
    assert "(2)" in (tmp_path / "both" / "report.html").read_text()
    runs = json.loads(call("report", trained, "--json").out)["runs"]
    assert [model["folder"] for model in runs[0]["models"]] == ["0.5", "0.8"]
    assert [change["what"] for change in runs[0]["changes"]] == ["prune to 0.5", "prune to 0.8"]


def test_a_sparse_model_is_fine_tuned(trained, call, tmp_path):
    changes = ["--set", "epochs=1", "batch_size=16", "data.images=64", "data.eval_images=20"]
    done = call(
        "train", "bundled-finetune", "--model", trained / "0.8", "--out", tmp_path / "run", "--device", "cpu", *changes
    )
    assert done.code == 0 and "fine-tuning, single cosine" in done.out and "0.8000" in done.out
    dense = call("train", "bundled-finetune", "--out", tmp_path / "dense", "--device", "cpu", *changes)
    assert dense.code == 2 and "fine-tunes a sparse model, and bundled has no zeros" in dense.err


MISTAKES = {
    "`secateur train` needs a recipe; there are bundled-acdc": ["train"],
    "There is no recipe 'bundled-gradul'. Did you mean bundled-gradual": ["train", "bundled-gradul"],
    "--set learning_rate.hihest=1: there is no key 'hihest' in learning_rate. Did you mean highest":
        ["train", "bundled-gradual", "--set", "learning_rate.hihest=1"],
    "--epochs is 0; give 1 or more": ["train", "bundled-gradual", "--epochs", "0"],
    "2 do": ["train", "bundled-gradual", "--epochs", "4"],
    "This model needs images: give --data-dir FOLDER": ["train", "deit-tiny-gradual", "--set", "pretrained=false"],
    "needs the folders of one or more runs": ["report"],
    "holds no run: it has no recipe.yaml": ["report", "."],
}  # fmt: skip


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_one_sentence_before_any_work(sentence, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call(*MISTAKES[sentence])
    assert done.code == 2 and sentence in done.err and done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_journal_is_logged_for_tensorboard(grey, call, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    changes = [*SHORT, "epochs=1", "gradual.targets=[0.5]"]
    done = call("train", "bundled-gradual", "--model", grey, "--out", out, "--device", "cpu", "--tensorboard", *changes)
    assert done.code == 0, done.err
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert {"loss", "learning_rate", "sparsity", "top1", "eval_loss"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]


@pytest.mark.parametrize(("flags", "package"), [(["--tensorboard"], "tensorboard"), (["--wandb", "mine"], "wandb")])
def test_a_tracker_that_is_not_installed_is_told_before_training(flags, package, grey, call, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = call(
        "train", "bundled-gradual", "--model", grey, "--out", tmp_path / "run", "--device", "cpu", *flags, *SHORT
    )
    assert done.code == 2 and f"--{package} needs the package {package}; install it with pip" in done.err


def test_the_journal_is_logged_for_weights_and_biases(monkeypatch):
    import sys
    from types import SimpleNamespace

    from secateur.training.journal import Entry
    from secateur.training.trackers import wandb

    said = []
    package = SimpleNamespace(
        init=lambda **words: said.append(words) or SimpleNamespace(log=lambda v, step: said.append((v, step)))
    )
    monkeypatch.setitem(sys.modules, "wandb", package)
    package.__spec__ = SimpleNamespace()
    wandb("mine", read_recipe("bundled-gradual"))(Entry(3, 0.5, "train", 1.0, 1e-3, 0.5, loss=0.25))
    assert said[0]["project"] == "mine" and said[0]["config"]["model"] == "bundled"
    assert said[1] == ({"learning_rate": 1e-3, "sparsity": 0.5, "loss": 0.25}, 3)
