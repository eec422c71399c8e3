"""Models of transformers: loaded by name or folder, treated as timm's are, saved so that transformers opens them."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
import transformers
from detectors import detr, resnet, saved, vit
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from secateur import (
    DataSource,
    InputError,
    calibration_batches,
    evaluate,
    evaluation_batches,
    hub,
    inspect,
    load,
    load_model,
    prune_,
    save,
)
from secateur.data.transforms import data_config, validation_transform
from secateur.hf_models import is_detector, is_transformers
from secateur.models import class_count, describe_model, input_shape

MAKERS = {"vit": vit, "resnet": resnet, "detr": detr, "detr on timm's resnet": lambda: detr("resnet10t")}
AUTO = {"vit": "AutoModelForImageClassification", "resnet": "AutoModelForImageClassification"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: saved(make(), root / str(i)) for i, (name, make) in enumerate(MAKERS.items())}


@pytest.fixture
def folder(folders, tmp_path):
    """A copy, to be spoilt."""
    return shutil.copytree(folders["vit"], tmp_path / "model")


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(first, second):
    first, second = state(first), state(second)
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("name", MAKERS)
def test_a_folder_of_transformers_opens_by_its_path(folders, name):
    model = load_model(str(folders[name]))
    assert_same(model, MAKERS[name]())
    assert not model.training and is_transformers(model) and is_detector(model) == name.startswith("detr")
    assert hasattr(model, "image_processor") == (name != "resnet")


def test_a_folder_may_be_named_as_timms_are(folders):
    assert_same(load_model(f"local-dir:{folders['vit']}"), vit())


def test_without_pretrained_the_weights_are_random_and_the_folder_may_have_none(folder):
    (folder / "model.safetensors").unlink()
    model = load_model(str(folder), pretrained=False)
    assert class_count(model) == 3 and not torch.equal(model.classifier.weight, vit().classifier.weight)


def test_another_number_of_classes_means_a_fresh_classifier_on_the_same_body(folders):
    model = load_model(str(folders["vit"]), num_classes=5)
    assert class_count(model) == 5 and model.classifier.weight.shape == (5, 16)
    assert torch.equal(model.vit.layernorm.weight, vit().vit.layernorm.weight)
    first = [m.vit.embeddings.patch_embeddings.projection.weight for m in (model, vit())]
    assert torch.equal(*first)


def test_a_checkpoint_takes_the_place_of_the_folders_weights(folders, tmp_path):
    save_file(state(vit(seed=1)), tmp_path / "other.safetensors")
    assert_same(load_model(str(folders["vit"]), checkpoint=tmp_path / "other.safetensors"), vit(seed=1))


def test_loading_is_silent_and_leaves_the_librarys_voice_as_it_was(folders, capfd):
    logging.set_verbosity_warning()
    logging.enable_progress_bar()
    load_model(str(folders["detr"]), num_classes=2)
    assert capfd.readouterr() == ("", "")
    assert logging.get_verbosity() == logging.WARNING and logging.is_progress_bar_enabled()


SHAPES = {"vit": (3, 16, 16), "resnet": (3, 224, 224), "detr": (3, 32, 32)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_says_its_shape_and_classes(folders, name):
    model = load_model(str(folders[name]))
    assert input_shape(model) == SHAPES[name]
    assert class_count(model) == (6 if name == "detr" else 3)
    pixels = "×".join(map(str, SHAPES[name]))
    assert describe_model(model).endswith(f"{pixels} pixels, {class_count(model)} classes")


def test_the_size_is_that_of_the_config_where_there_is_no_image_processor(folder):
    (folder / "preprocessor_config.json").unlink()
    assert input_shape(load_model(str(folder))) == (3, 16, 16)


# --- mistakes ---------------------------------------------------------------------------------------------------------


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def lose_a_weight(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.bias"], weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def spoil_a_weight(folder):
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"][1] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def cut_off(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


SPOILT = {
    r"has no model\.safetensors, and pickled weights are not opened; convert them": lambda f: (
        f / "model.safetensors"
    ).rename(f / "pytorch_model.bin"),
    r"lack classifier\.bias \(and 1 more\); load the weights this architecture": lose_a_weight,
    r"1 of the 3 values of classifier\.bias are NaN or infinite": spoil_a_weight,
    "files in .* do not make a model: .*": cut_off,
    "do not make a model: .*nosuch": lambda f: change_config(f, model_type="nosuch"),
    "do not make a model: .*mismatch": lambda f: change_config(f, hidden_size=24),
    "holds a ViTModel; give a model whose architecture ends in ForImageClassification, .*ForObjectDetection": (
        lambda f: change_config(f, architectures=["ViTModel"])
    ),
    r"holds no architecture that config\.json names": lambda f: change_config(f, architectures=None),
    "do not make a model: .*preprocessor": lambda f: (f / "preprocessor_config.json").write_text("{"),
}


@pytest.mark.parametrize("message", SPOILT)
def test_a_folder_that_makes_no_model_is_named(folder, message):
    SPOILT[message](folder)
    with pytest.raises(InputError, match=message) as found:
        load_model(str(folder))
    assert str(found.value).count("\n") == 0 and len(str(found.value)) < 600


def test_code_that_lies_beside_a_model_is_not_run(folder):
    (folder / "evil.py").write_text("raise SystemExit('run')")
    change_config(folder, model_type="evil", auto_map={"AutoConfig": "evil.Config"})
    with pytest.raises(InputError, match=r"do not make a model: .* contains custom code"):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["hf:", "hf:owner", "hf:owner/name/more", "hf:../somewhere", "hf:a b/c"])
def test_a_name_that_is_none_of_the_hub_is_refused(name):
    with pytest.raises(
        InputError, match=rf"'{re.escape(name)}' is no model of the hub; give hf:owner/name, or a folder"
    ):
        load_model(name)


def test_without_a_network_the_answer_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "_hub_answers", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for pretrained in (True, False):
        with pytest.raises(InputError, match=r"The weights of hf:owner/none cannot be had .*; give a model folder"):
            load_model("hf:owner/none", pretrained)
    assert not constants.HF_HUB_OFFLINE


def test_what_must_be_installed_is_said(folders, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = r'needs the package transformers; install it with pip install "secateur\[transformers\]"'
    with pytest.raises(InputError, match=message):
        load_model(str(folders["vit"]))


# --- images -----------------------------------------------------------------------------------------------------------

PROCESSORS = {
    "squashed": lambda: transformers.ViTImageProcessor(size={"height": 24, "width": 16}),
    "another mean": lambda: transformers.ViTImageProcessor(
        size={"height": 24, "width": 24}, image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.6, 0.7], resample=3
    ),
    "no mean": lambda: transformers.ViTImageProcessor(size={"height": 16, "width": 16}, do_normalize=False),
    "up to 255": lambda: transformers.ViTImageProcessor(size={"height": 16, "width": 16}, do_rescale=False),
    "squashed and cropped": lambda: transformers.DeiTImageProcessor(
        size={"height": 32, "width": 32}, crop_size={"height": 28, "width": 28}
    ),
    "cropped": lambda: transformers.BitImageProcessor(
        size={"shortest_edge": 30}, crop_size={"height": 22, "width": 22}
    ),
    "ConvNeXt's crop": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 28}),
    "ConvNeXt's squash": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 384}),
}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_an_image_becomes_what_the_models_own_processor_makes_of_it(kind):
    model = vit()
    model.image_processor = PROCESSORS[kind]()
    x, y = np.meshgrid(np.arange(60), np.arange(45))
    pixels = np.stack([4 * x, 5 * y, (x * y) % 200], axis=-1).astype(np.uint8)
    expected = model.image_processor(images=[Image.fromarray(pixels)], return_tensors="pt")["pixel_values"][0]
    source = DataSource(data_dir="somewhere")
    found = validation_transform(source, data_config(model, source))(Image.fromarray(pixels))
    assert found.shape == expected.shape
    steps = 255 * (found - expected).abs() * torch.tensor(data_config(model, source)["std"])[:, None, None]
    assert steps.max() <= (3 if model.image_processor.resample == 3 else 1.01)  # of 255 to a channel; libraries round


def test_a_processor_that_swaps_channels_is_refused():
    model = vit()
    model.image_processor = transformers.MobileViTImageProcessor()
    with pytest.raises(
        InputError, match=r"MobileViTImageProcessor of this model swaps red and blue.* batches of your own"
    ):
        data_config(model, DataSource(data_dir="somewhere"))


def test_a_size_that_the_model_does_not_take_is_refused():
    with pytest.raises(InputError, match=r"does not take images of 32×32 \(.*\); leave the size out"):
        data_config(vit(), DataSource(data_dir="somewhere", image_size=32))
    assert data_config(resnet(), DataSource(data_dir="somewhere", image_size=32))["input_size"] == (3, 32, 32)


@pytest.fixture
def images(tmp_path):
    random = np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(4):
            pixels = random.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{i}.png")
    return DataSource(data_dir=tmp_path / "images", workers=0)


def test_a_classifier_is_pruned_and_measured_as_timms_are(images):
    model = vit()
    batches = calibration_batches(images, model, samples=8, batch_size=4)
    result = prune_(model, batches, "cap", 0.5, layers="vit.layers.*")
    assert result.achieved == 0.5 and result.predicted_loss_increase > 0
    tests = list(evaluation_batches(images, model))
    with torch.inference_mode():
        right = sum(int((model(x).logits.argmax(1) == y).sum()) for x, y in tests)
    assert evaluate(model, tests).top1 == pytest.approx(100 * right / 12)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_a_run_directory_opens_in_transformers_and_here(name, tmp_path):
    model = MAKERS[name]()
    result = prune_(model, None, "magnitude", 0.5)
    save(model, result, tmp_path / "run")
    auto = getattr(transformers, AUTO.get(name, "AutoModelForObjectDetection"))
    logging.disable_progress_bar()
    again, problems = auto.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not any(problems.values())
    assert_same(again, model)
    loaded, masks = load(tmp_path / "run")
    assert_same(loaded, model)
    assert masks.keys() == result.masks.keys()
    assert_same(load_model(str(tmp_path / "run")), model)
    certificate = inspect(tmp_path / "run")
    assert certificate.ok and certificate.zeros == result.zeros
    if hasattr(model, "image_processor"):
        processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "run")
        assert processor.to_dict() == model.image_processor.to_dict() == loaded.image_processor.to_dict()
    assert (tmp_path / "run" / "preprocessor_config.json").exists() == hasattr(model, "image_processor")


def test_a_folder_keeps_the_type_its_weights_were_saved_in(tmp_path):
    model = vit().to(torch.bfloat16)
    save(model, {}, tmp_path / "run")
    assert load(tmp_path / "run")[0].dtype == load_model(str(tmp_path / "run")).dtype == torch.bfloat16


def test_a_changed_preprocessing_is_found(tmp_path):
    save(vit(), {}, tmp_path / "run")
    path = tmp_path / "run" / "preprocessor_config.json"
    path.write_text(path.read_text().replace("0.5", "0.4"))
    certificate = inspect(tmp_path / "run")
    assert not certificate.ok and certificate.problems == [
        "preprocessor_config.json is not the file that was saved: its SHA-256 differs."
    ]
    with pytest.raises(InputError, match=r"preprocessor_config\.json is not the file that was saved"):
        load(tmp_path / "run")


class Mine(transformers.ViTForImageClassification):
    pass


def changed_classifier(model):
    model.classifier = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 3))
    return model


def test_a_model_that_its_config_does_not_rebuild_must_be_passed_in(tmp_path):
    mine = Mine(vit().config)
    for number, (model, twin) in enumerate([(mine, Mine(mine.config)), (changed_classifier(vit()), None)]):
        save(model, {}, tmp_path / str(number))
        with pytest.raises(InputError, match="not one of timm's or transformers'; pass the model"):
            load(tmp_path / str(number))
        again, _ = load(tmp_path / str(number), twin or changed_classifier(vit(seed=1)))
        assert_same(again, model)
