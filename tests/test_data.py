"""The same images, transforms and order for the same seed, however they are read."""

import os
import random
import signal

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from secateur.bundled import MEAN, STD, load_images
from secateur.data import DataSource, calibration_batches, evaluation_batches
from secateur.errors import InputError
from secateur.models import load_model

COLOURS = {"ant": (200, 0, 0), "bee": (0, 200, 0), "cat": (0, 0, 200)}


@pytest.fixture(scope="module")
def model():
    return timm.create_model("resnet10t", num_classes=3)


@pytest.fixture(scope="module")
def bundled():
    return load_model("bundled")


@pytest.fixture
def folder(tmp_path):
    """Three classes of four noisy images each."""
    noise = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            pixels = np.clip(noise.normal(colour, 30, (40, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def source(folder, **options):
    return DataSource(data_dir=folder, image_size=32, **{"workers": 0, **options})


def together(batches):
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(together(first), together(second), strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_images_lie_in_memory_pixel_by_pixel_as_convolutions_want_them(model, folder, workers):
    for images, _ in evaluation_batches(source(folder, workers=workers), model, batch_size=5):
        assert images.is_contiguous(memory_format=torch.channels_last)


KINDS = {
    "calibration": lambda *given, **options: calibration_batches(*given, samples=17, batch_size=5, **options),
    "evaluation": lambda *given, **options: evaluation_batches(*given, limit=7, batch_size=5, **options),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_pass_and_any_number_of_workers_gives_the_same_batches(folder, model, kind):
    batches = KINDS[kind](source(folder), model, seed=3)
    assert same(batches, batches) and len(list(batches)) == len(batches) == -(-batches.samples // 5)
    assert same(batches, KINDS[kind](source(folder, workers=2), model, seed=3))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_draws_others(folder, model, kind):
    first, second = (together(KINDS[kind](source(folder), model, seed=seed))[0] for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_callers_random_numbers_are_not_used_up(folder, model, workers):
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    def seed():
        random.seed(0), np.random.seed(0), torch.manual_seed(0)

    seed()
    expected = draw()
    seed()
    together(calibration_batches(source(folder, workers=workers), model, samples=6))
    assert draw() == expected


def test_augmentation_does_not_depend_on_the_batch_size(folder, model):
    sizes = [calibration_batches(source(folder), model, samples=9, batch_size=size) for size in (2, 9)]
    assert same(*sizes)


def test_images_are_drawn_without_replacement_before_any_comes_again(folder, model):
    batches = calibration_batches(source(folder), model, samples=30)
    order = batches.dataset.order
    assert [len(set(part)) for part in (order[:12], order[12:24], order[24:])] == [12, 12, 6]
    assert list(order[:12]) != list(order[12:24]) and batches.rounds == 2.5
    assert "has 12 images, so they are gone round 2.5 times" in batches.notes[0]
    images, _ = together(batches)
    again = int(np.flatnonzero(order[12:24] == order[0])[0]) + 12
    assert not torch.equal(images[0], images[again])  # augmented afresh


def test_without_augmentation_no_image_is_taken_twice(folder, model):
    batches = calibration_batches(source(folder), model, samples=30, augment="validation")
    images, labels = together(batches)
    assert len({tuple(image.flatten().tolist()) for image in images}) == 12
    assert labels.bincount().tolist() == [4, 4, 4] and not batches.notes


def test_evaluation_takes_each_image_once_in_order_of_its_name(folder, model):
    batches = evaluation_batches(source(folder), model)
    images, labels = together(batches)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert images.mean((2, 3)).argmax(1).tolist() == labels.tolist()  # red, green, blue


def test_the_validation_transform_is_timms(folder, model):
    images, _ = together(evaluation_batches(source(folder), model))
    config = timm.data.resolve_data_config(model=model, args={"input_size": (3, 32, 32)})
    transform = timm.data.create_transform(**config, is_training=False)
    with Image.open(folder / "ant" / "0.png") as image:
        torch.testing.assert_close(images[0], transform(image), rtol=0, atol=0)


def test_bundled_images_are_only_scaled_for_validation(bundled):
    pixels, labels = load_images("test")
    images, found = together(evaluation_batches("bundled", bundled, limit=10_000, batch_size=10_000))
    expected = (torch.from_numpy(pixels.copy()).float() / 255 - MEAN[0]) / STD[0]
    torch.testing.assert_close(images[:, 0], expected)
    assert found.tolist() == labels.tolist()


def test_bundled_images_for_gradients_are_training_images_seen_through_crops(bundled):
    plain, labels = together(calibration_batches("bundled", bundled, samples=20, augment="validation"))
    augmented, found = together(calibration_batches("bundled", bundled, samples=20))
    assert plain.shape == augmented.shape == (20, 1, 28, 28) and torch.equal(labels, found)
    assert (plain != augmented).flatten(1).any(1).sum() >= 19
    training = {image.tobytes() for image in load_images("train")[0]}
    assert all((image[0] * STD[0] + MEAN[0]).mul(255).round().byte().numpy().tobytes() in training for image in plain)


@pytest.mark.parametrize("policy", ["", "rand-m10-n4", "augmix-m5", None])
def test_a_policy_of_timm_may_be_named(folder, model, policy):
    batches = calibration_batches(source(folder), model, samples=12, auto_augment=policy, re_prob=0.0)
    default = calibration_batches(source(folder), model, samples=12, re_prob=0.0)
    assert same(batches, default) == (policy is None)


def test_every_strength_of_posterize_is_one_that_pillow_takes(folder, model):
    batches = calibration_batches(source(folder), model, samples=24, auto_augment="rand-m10-n6-mstd9-inc0", re_prob=0.0)
    assert together(batches)[0].isfinite().all()


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (4, "RGBA")])
def test_images_come_with_as_many_channels_as_the_model_takes(folder, channels, mode):
    model = timm.create_model("resnet10t", num_classes=3, in_chans=channels)
    batches = evaluation_batches(source(folder), model)
    assert batches.dataset.prepare.mode == mode and together(batches)[0].shape == (12, channels, 32, 32)


MISTAKES = {
    "There is no augmentation 'more'; give train or validation": {"augment": "more"},
    "timm knows no augmentation 'rand-q9'; try rand-m9": {"auto_augment": "rand-q9"},
    r"The probability of erasing is 1\.5; give 0 to 1": {"re_prob": 1.5},
    "seed is -1; give a whole number from 0": {"seed": -1},
    "samples is 0; give a whole number from 1": {"samples": 0},
    "batch_size is -2; give a whole number from 1": {"batch_size": -2},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_named_before_any_image_is_read(folder, model, message):
    with pytest.raises(InputError, match=message):
        calibration_batches(source(folder), model, **MISTAKES[message])


def test_a_limit_and_a_number_of_workers_must_make_sense(folder, model):
    with pytest.raises(InputError, match="limit is 0; give a whole number from 1"):
        evaluation_batches(source(folder), model, limit=0)
    with pytest.raises(InputError, match="workers is -1; give a whole number from 0"):
        evaluation_batches(source(folder, workers=-1), model)


def test_sizes_and_channels_the_model_cannot_take_are_refused(folder, bundled):
    with pytest.raises(InputError, match="built for images of 28×28, not 32×32; leave the size out"):
        evaluation_batches(source(folder), bundled)
    with pytest.raises(InputError, match="image_size is -1; give a whole number from 1"):
        evaluation_batches(DataSource(data_dir=folder, image_size=-1), bundled)
    strange = timm.create_model("resnet10t", num_classes=3, in_chans=3)
    strange.pretrained_cfg = {**strange.pretrained_cfg, "input_size": (5, 32, 32)}
    strange.conv1[0] = torch.nn.Conv2d(5, 24, 3)
    with pytest.raises(InputError, match="The model takes 5 channels; images have 1, 3 or 4"):
        evaluation_batches(source(folder), strange)


def test_a_worker_that_is_killed_is_one_sentence(folder, model, monkeypatch):
    batches = evaluation_batches(source(folder, workers=1), model)
    parent = os.getpid()
    monkeypatch.setattr(
        type(batches.dataset.images), "load", lambda *_: os.getpid() != parent and os.kill(os.getpid(), signal.SIGKILL)
    )
    with pytest.raises(InputError, match=r"A process that reads .* was killed, .*; use fewer workers or 0"):
        together(batches)


def test_other_failures_of_the_loader_are_passed_on(folder, model, monkeypatch):
    batches = evaluation_batches(source(folder), model)

    def fail(*_):
        raise RuntimeError("something else")

    monkeypatch.setattr(type(batches.dataset), "__getitems__", fail)
    with pytest.raises(RuntimeError, match="something else"):
        together(batches)
