import pytest
import timm
import torch
from detectors import vit
from small import a_recipe

from secateur.errors import InputError
from secateur.layers import select_layers
from secateur.models import load_model
from secateur.training.estimate import estimated_seconds, seconds_per_image
from secateur.training.recipe_file import read_recipe, recipe_names
from secateur.training.timeline import make_timeline

IMAGENET = 1_281_167


def events(name, *changes, images=IMAGENET):
    timeline = make_timeline(read_recipe(name, changes), images)
    steps = timeline.steps_per_epoch
    return [(e.step / steps, e.action, e.target) for e in timeline.events.values()], {
        step / steps: name for step, name in timeline.saves.items()
    }


def test_the_gradual_run_of_the_paper_reaches_its_targets_when_the_paper_says():
    changes, saves = events("deit-small-gradual")
    assert [epoch for epoch, _, _ in changes] == list(range(0, 300, 20))
    assert saves == {40: "0.5", 60: "0.6", 120: "0.75", 140: "0.8", 300: "0.9"}


def test_one_cosine_prunes_twice_as_often():
    changes, saves = events("deit-tiny-single-cosine")
    assert [epoch for epoch, _, _ in changes] == list(range(0, 300, 10))
    assert list(saves.values()) == ["0.5", "0.6", "0.75", "0.8", "0.9"]


def test_the_phases_of_ac_dc_are_those_of_the_paper():
    changes, saves = events("deit-small-acdc")
    assert changes[0] == (150, "compress", 0.6) and changes[1] == (175, "decompress", None)
    assert changes[-1] == (525, "compress", 0.6) and len(changes) == 15
    assert saves == {600: "0.6"}


def test_rigl_starts_sparse_and_moves_its_masks_for_three_quarters_of_the_run():
    timeline = make_timeline(read_recipe("bundled-rigl"), 4096)
    found = list(timeline.events.values())
    assert (found[0].step, found[0].action, found[0].target) == (0, "start", 0.9)
    assert [e.step for e in found[1:]] == list(range(20, 360, 20)) and {e.action for e in found[1:]} == {"move"}
    assert timeline.evaluates_at(0) and not timeline.evaluates_at(20)


def test_a_pattern_names_its_folder_without_a_colon():
    changes, saves = events("deit-tiny-2-4-10")
    assert changes == [(0, "prune", "2:4")] and saves == {10: "2of4"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [("gradual={targets: [0.5, 0.75], unit: steps, start: 2, every: 5}", [2, 7]), ("gradual.start=1", [4, 8])],
)
def test_pruning_steps_can_be_counted_in_steps_or_start_later(change, expected):
    changes = (change,) if "targets" in change else (change, "gradual.targets=[0.5, 0.75]")
    assert list(make_timeline(a_recipe("model", *changes), 64).events) == expected


def test_pruning_steps_that_do_not_fit_into_the_steps_are_refused():
    recipe = a_recipe("model", "gradual={targets: [0.5, 0.75], unit: steps, every: 12}")
    with pytest.raises(
        InputError, match="2 pruning steps, one every 12 steps from 0 on, do not fit into 12 steps; 1 do"
    ):
        make_timeline(recipe, 64)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_names_a_model_that_is_there_with_layers_to_prune(name):
    recipe = read_recipe(name)
    model = load_model("bundled")
    if recipe.model != "bundled":
        with torch.device("meta"):
            model = timm.create_model(recipe.model, drop_path_rate=recipe.augmentation.drop_path)
    assert select_layers(model, list(recipe.layers) or None)
    timeline = make_timeline(recipe, recipe.data.images or IMAGENET)
    assert timeline.saves and max(timeline.saves) == timeline.steps


def test_the_time_of_a_run_is_that_of_its_images():
    timeline = make_timeline(a_recipe("model"), 64)  # 192 to train on, 3 Fishers of 16, 7 measurements
    assert estimated_seconds(timeline, 0.5, 30) == pytest.approx(0.5 * (192 + 48 + 7 * 30 / 3))
    assert estimated_seconds(timeline, 0.5, 30, processes=2) == pytest.approx(estimated_seconds(timeline, 0.25, 30))


def test_a_trial_takes_more_images_until_it_is_long_enough():
    model = load_model("bundled")
    times = iter([0, 0.1, 0, 0.2, 0, 0.6])
    assert seconds_per_image(model, 64, lambda: next(times)) == pytest.approx(0.6 / 4)
    times = iter([0, 0.1, 0, 0.2])
    assert seconds_per_image(model, 2, lambda: next(times)) == pytest.approx(0.1)


def test_a_model_of_transformers_is_tried_too():
    times = iter([0, 0.6])
    assert seconds_per_image(vit(), 64, lambda: next(times)) == pytest.approx(0.6)
