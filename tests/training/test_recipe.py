from dataclasses import replace

import pytest

from secateur.errors import InputError
from secateur.training.augment import AUGMENTATIONS, Augmentation, augmentation_named
from secateur.training.distill import Distillation
from secateur.training.masking import Gradual
from secateur.training.recipe import LearningRate, Recipe
from secateur.training.recipe_file import parse_recipe, read_recipe, recipe_names, write_recipe

TEXT = """\
model: bundled
epochs: 6
batch_size: 64
augmentation: light1
learning_rate:
  highest: 1e-3
  cycle: 2
gradual:
  targets: [0.5, 0.75]
  every: 2
"""


def changed(old, new):
    assert old in TEXT
    return TEXT.replace(old, new)


def test_a_recipe_reads_as_what_it_says():
    recipe = parse_recipe(TEXT)
    assert recipe == Recipe(
        model="bundled", epochs=6, batch_size=64, augmentation=AUGMENTATIONS["light1"],
        learning_rate=LearningRate(highest=1e-3, cycle=2), gradual=Gradual(targets=(0.5, 0.75), every=2),
    )  # fmt: skip


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_written_back_as_it_was_read(name, tmp_path):
    recipe = read_recipe(name)
    assert recipe.about
    write_recipe(recipe, tmp_path / "recipe.yaml")
    assert read_recipe(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("deit", (0.05, 0.1, 0.1, None, 0.5, "rand-m9-mstd0.5-inc1", 0.8, 1.0, 0.25, 0.9)),
        ("light1", (0.03, 0.1, 0.0, 1.0, 0.5, "rand-m2-mstd0.5-inc1", 0.0, 0.0, 0.0, 0.9)),
    ],
)
def test_the_augmentations_are_the_columns_of_the_table_of_the_paper(column, expected):
    a = augmentation_named(column)
    assert expected == (
        a.weight_decay, a.smoothing, a.drop_path, a.clip, a.hflip, a.auto_augment, a.mixup, a.cutmix, a.erase,
        a.test_crop,
    )  # fmt: skip


def test_an_augmentation_can_differ_in_part():
    recipe = parse_recipe(changed("light1", "{like: deit, mixup: 0.2}"))
    assert recipe.augmentation == replace(AUGMENTATIONS["deit"], mixup=0.2)


CHANGES = {
    "epochs=8": lambda r: r.epochs == 8,
    "learning_rate.highest=2e-4": lambda r: r.learning_rate.highest == 2e-4,
    "augmentation.mixup=0.3": lambda r: r.augmentation == replace(AUGMENTATIONS["light1"], mixup=0.3),
    "distillation.weight=0.25": lambda r: r.distillation == Distillation(weight=0.25),
    "gradual.targets=[0.5, 2:4]": lambda r: r.gradual.targets == (0.5, "2:4"),
    "gradual.targets=0.7": lambda r: r.gradual.targets == (0.7,),
    "data.images=512": lambda r: r.data.images == 512,
    "gradual=": lambda r: r.gradual is None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_takes_the_place_of_a_line(change):
    assert CHANGES[change](parse_recipe(TEXT, changes=[change]))


MISTAKES = {
    "a key that is none":
        (changed("every", "evry"), r"recipe, line 10: there is no key 'evry' in gradual\. Did you mean every"),
    "a section that is none": (TEXT + "gradal: {}\n", r"line 11: there is no key 'gradal'\. Did you mean gradual"),
    "a key twice": (TEXT + "epochs: 3\n", "line 11: epochs stands here a second time"),
    "a key that is missing": (changed("epochs: 6\n", ""), "line 1: the recipe lacks the key epochs"),
    "text for a number": (changed("1e-3", "high"), r"line 6: learning_rate\.highest is 'high'; it must be a number"),
    "a number for text": (changed("bundled", "[1]"), "line 1: model is a list or a mapping; it must be text"),
    "a fraction of an epoch": (changed("epochs: 6", "epochs: 6.5"), r"line 2: epochs is '6\.5'; it must be a whole"),
    "no section":
        (changed("  highest: 1e-3\n  cycle: 2\n", "  5e-4\n"), "line 6: learning_rate takes `key: value` lines"),
    "no recipe": ("- 1\n", "recipe holds no `key: value` lines"),
    "no YAML": ("a: [1\n", r"recipe, line \d: this is no YAML"),
    "an unknown augmentation":
        (changed("light1", "light"), "line 4: There is no augmentation 'light'. Did you mean light1"),
    "an augmentation out of bounds":
        (changed("light1", "{erase: 2}"), "line 4: erase of the augmentation is 2.0; give 0 to 1"),
    "a negative weight decay":
        (changed("light1", "{weight_decay: -1}"), "weight_decay of the augmentation is -1.0; give 0 or"),
    "targets that fall": (changed("0.75", "0.4"), r"line 9: The sparsities must rise: 0\.4 follows 0\.5"),
    "a percentage": (changed("0.75", "75"), r"line 9: The sparsity 75 is no fraction; did you mean 0\.75"),
    "a sparsity beyond all": (changed("0.75", "175"), "line 9: The sparsity 175 is no fraction; give"),
    "a pattern that is none": (changed("0.75", "2:x"), "line 9: '2:x' is no pattern N:M"),
    "a pattern the wrong way round": (changed("0.75", "4:2"), "line 9: .* did you mean 2:4"),
    "a pattern that falls": (changed("0.75", "3:4"), "line 9: The sparsities must rise: 3:4 follows 0.5"),
    "a fraction below the pattern before":
        (changed("[0.5, 0.75]", "[1:4, 0.6]"), "line 9: The sparsities must rise: 0.6 follows 1:4"),
    "more pruning steps than fit":
        (changed("every: 2", "every: 6"), "line 8: 2 pruning steps, one every 6 epochs from 0 on, do not fit into 6"),
    "a warm-up longer than the run":
        (changed("cycle: 2", "warmup: 6"), "line 5: The warm-up of 6 epochs is no shorter"),
    "a cycle longer than the run":
        (changed("cycle: 2", "cycle: 7"), "line 5: A cycle of 7 epochs is longer than the run"),
    "a rate that rises": (changed("cycle: 2", "lowest: 1"), r"line 7: The learning rate falls from 0\.001 to 1"),
    "an unknown shape":
        (changed("cycle: 2", "shape: square"), "line 7: shape is 'square'; give linear, cosine or constant"),
    "an epoch of nothing": (changed("epochs: 6", "epochs: 0"), "line 2: epochs is 0; give a whole number from 1"),
    "a micro-batch that does not divide":
        (TEXT + "micro_batch: 48\n", "line 11: 48 does not divide the batch size of 64"),
    "an average without weight": (TEXT + "ema: 1\n", r"line 11: The decay of the averaged weights is 1\.0"),
    "an unknown precision": (TEXT + "precision: int8\n", "line 11: precision is 'int8'; give no, bf16 or fp16"),
    "targets and a ramp":
        (changed("every: 2", "ramp: cubic"), "line 9: A gradual pruning needs targets or a ramp, one"),
    "a teacher without weight": (TEXT + "distillation: {weight: 2}\n", "line 11: The teacher's weight is 2.0"),
    "a teacher that says nothing": (TEXT + "teacher: bundled\n", "line 11: There is a teacher without a distillation"),
    "a cold teacher": (TEXT + "distillation: {temperature: 0}\n", "line 11: The teacher's temperature is 0.0"),
    "a model saved that never is":
        (changed("every: 2", "every: 2\n  save: [0.6]"), r"The model at 0\.6 is to be saved, but"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_line(mistake):
    text, message = MISTAKES[mistake]
    with pytest.raises(InputError, match=message):
        parse_recipe(text)


RAMPS = {
    "first: 0.5\n  last: 0.4": r"line 10: The ramp goes from 0\.5 to 0\.4",
    "last: 0.4": r"The ramp goes from None to 0\.4",
    "first: 0.4\n  last: 0.9\n  through: [0.95]": r"line 12: The ramp from 0\.4 to 0\.9 cannot pass through 0\.95",
    "first: 0.4\n  last: 0.9\n  steps: 9": "line 8: 9 pruning steps, one every 2 epochs from 0 on, do not fit",
    "first: 0.4\n  last: 0.9\n  through: [0.5, 0.6]": "line 8: 3 pruning steps cannot pass through",
}


@pytest.mark.parametrize("lines", RAMPS)
def test_an_impossible_ramp_is_refused(lines):
    with pytest.raises(InputError, match=RAMPS[lines]):
        parse_recipe(changed("targets: [0.5, 0.75]", f"ramp: cubic\n  {lines}"))


CHANGED_WRONGLY = {
    "gradual.evry=2": r"^--set gradual\.evry=2: there is no key 'evry'",
    "epochs": "^--set epochs: give section.key=value",
    "epochs=x": "^--set epochs=x: epochs is 'x'",
    "gradual.targets=[0.9, 0.5]": r"^--set gradual\.targets=\[0\.9, 0\.5\]: The sparsities must rise",
}


@pytest.mark.parametrize("change", CHANGED_WRONGLY)
def test_a_wrong_change_is_told_as_such(change):
    with pytest.raises(InputError, match=CHANGED_WRONGLY[change]):
        parse_recipe(TEXT, changes=[change])


def test_a_recipe_that_is_not_there_is_told_with_the_nearest(tmp_path):
    with pytest.raises(InputError, match=r"There is no recipe 'bundled-gradul'\. Did you mean bundled-gradual"):
        read_recipe("bundled-gradul")
    (tmp_path / "latin.yaml").write_bytes(b"about: \xff\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_recipe(tmp_path / "latin.yaml")


def test_an_augmentation_of_nothing_smooths_and_mixes_nothing():
    plain = Augmentation()
    assert plain.mixing(10) is None and not plain.mixes
