"""Folders, tar files and what timm reads by name; what is wrong with one is said, with the file that it is."""

import importlib.util
import io
import tarfile
import time

import datasets
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import ImageNetInfo

from secateur.data import DataSource, calibration_batches, evaluation_batches
from secateur.errors import InputError

NAMES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def model():
    return timm.create_model("resnet10t", num_classes=3)


@pytest.fixture(scope="module")
def imagenet_model():
    return timm.create_model("resnet10t")


def fill(folder, names=NAMES, count=2):
    """Class folders; the shade of an image says which class it is of: 0, 80, 160, …"""
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            picture(80 * number % 256).save(folder / name / f"{i}.jpg")
    return folder


def picture(shade):
    noise = np.random.default_rng(shade).integers(0, 20, (40, 40, 3))
    return Image.fromarray((shade + noise).clip(0, 255).astype(np.uint8))


def encoded(shade):
    file = io.BytesIO()
    picture(shade).save(file, "JPEG")
    return file.getvalue()


def pack(path, files):
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def labels_of(batches):
    return [int(label) for _, labels in batches for label in labels]


def evaluated(model, data_dir=None, **options):
    return evaluation_batches(DataSource(data_dir=data_dir, **{"image_size": 32, "workers": 0, **options}), model)


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_classes_are_numbered_in_the_order_of_their_names(tmp_path, model, form):
    path = fill(tmp_path / "photos")
    if form == "tar":
        path = tmp_path / "photos.tar"
        pack(path, {f"{n}/{i}.jpg": encoded(80 * k) for k, n in enumerate(NAMES) for i in range(2)})
    for workers in (0, 2):
        batches = evaluated(model, path, workers=workers)
        images, labels = next(iter(batches))
        assert labels.tolist() == [0, 0, 1, 1, 2, 2] and not batches.notes
        assert images.mean((1, 2, 3)).argsort().div(2, rounding_mode="floor").tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("present", "calibration", "evaluation"),
    [(("train", "val"), "train", "val"), (("training", "validation", "test"), "training", "validation")],
)
def test_each_use_takes_its_split(tmp_path, model, present, calibration, evaluation):
    for name in present:
        fill(tmp_path / name)
    used = calibration_batches(tmp_path, model, samples=2), evaluated(model, tmp_path)
    files = [batches.dataset.images.name(0) for batches in used]
    assert files == [str(tmp_path / name / "ant" / "0.jpg") for name in (calibration, evaluation)]
    assert evaluated(model, tmp_path, split=present[-1]).dataset.images.name(0).startswith(str(tmp_path / present[-1]))


def test_a_path_is_a_source(tmp_path, model):
    assert evaluation_batches(str(fill(tmp_path / "photos")), model).samples == 6


def test_a_class_map_gives_the_numbers(tmp_path, model):
    (fill(tmp_path / "photos") / "names.txt").write_text("cat\nant\nbee\n")
    assert labels_of(evaluated(model, tmp_path / "photos", class_map="names.txt")) == [1, 1, 2, 2, 0, 0]
    assert labels_of(evaluated(model, tmp_path / "photos", class_map=tmp_path / "photos" / "names.txt"))[-1] == 0


def test_some_folders_of_wordnet_ids_keep_the_numbers_of_imagenet(tmp_path, imagenet_model):
    ids = ImageNetInfo().label_names()
    batches = evaluated(imagenet_model, fill(tmp_path / "photos", [ids[7], ids[340], ids[999]], 1))
    assert labels_of(batches) == [7, 340, 999] and not batches.notes


def test_fewer_classes_than_the_models_are_told(tmp_path, imagenet_model):
    batches = evaluated(imagenet_model, fill(tmp_path / "photos"))
    assert "has 3 classes and the model 1000: unless a class map says otherwise" in batches.notes[0]


MISTAKES = {
    "There is no data folder": lambda t: {"data_dir": t / "nowhere"},
    "photos has no split 'validation'; it holds train": lambda t: {"data_dir": fill(t / "photos" / "train").parent},
    "has no split 'spring'; it holds none of": lambda t: {"data_dir": fill(t / "photos"), "split": "spring"},
    r"empty holds no image in a class folder; images end in \.jpg": lambda t: {"data_dir": made(t / "empty")},
    "holds images but no class folders; put each image in a": lambda t: {"data_dir": flat(t / "flat")},
    r"no image in a class folder that the class map names": lambda t: {"data_dir": mapped(t, "dog\n")},
    r"class map .*names\.csv is no text file": lambda t: {"data_dir": fill(t / "p"), "class_map": t / "names.csv"},
    r"class map none\.txt is no text file": lambda t: {"data_dir": fill(t / "p"), "class_map": "none.txt"},
    r"has label 3 \(eel\), but the model has 3 classes; give a class map": lambda t: {
        "data_dir": fill(t / "p", [*NAMES, "eel"])
    },
    r"a\.tar\.gz is neither a folder nor a \.tar file": lambda t: {"data_dir": written(t / "a.tar.gz", b"x")},
    r"a\.tar cannot be read as a tar file: .*; pack or copy": lambda t: {"data_dir": written(t / "a.tar", b"x" * 700)},
    r"a\.tar holds no image in a class folder": lambda t: {"data_dir": written(t / "a.tar", b"\0" * 10240)},
    "A folder dataset needs a data folder": lambda t: {"dataset": ""},
    "There is no dataset 'bundle'.* Did you mean bundled": lambda t: {"dataset": "bundle"},
    "There is no dataset 'huggingface/x'.* a name that starts with torch/, hfds/": lambda t: {
        "dataset": "huggingface/x"
    },
    "The bundled images need no data folder": lambda t: {"dataset": "bundled", "data_dir": t},
    "bundled images are labelled already": lambda t: {"class_map": "names.txt"},
    "bundled images have no split 'spring'": lambda t: {"split": "spring"},
    "torch/cifar10 needs a data folder": lambda t: {"dataset": "torch/cifar10"},
    "torch/image_folder numbers its classes itself; leave the class map out": lambda t: {
        "dataset": "torch/image_folder", "data_dir": fill(t / "p"), "class_map": "names.txt",
    },
    "torch/cifar10 .* cannot be opened: Dataset not found": lambda t: {"dataset": "torch/cifar10", "data_dir": t},
    "hfds/.* cannot be opened: ": lambda t: {"dataset": f"hfds/{made(t / 'nothing')}", "data_dir": t / "cache"},
}  # fmt: skip


def made(folder):
    folder.mkdir()
    return folder


def written(path, data):
    path.write_bytes(data)
    return path


def flat(folder):
    picture(0).save(made(folder) / "a.jpg")
    return folder


def mapped(folder, lines):
    written(fill(folder / "photos") / "names.txt", lines.encode())
    return folder / "photos"


@pytest.mark.parametrize("message", MISTAKES)
def test_a_source_that_cannot_be_used_is_named(tmp_path, model, message):
    options = MISTAKES[message](tmp_path)
    if "class map names" in message:
        options["class_map"] = "names.txt"
    with pytest.raises(InputError, match=message):
        evaluated(model, **options)


def test_a_folder_that_cannot_be_read_is_named(tmp_path, model, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("Permission denied")

    monkeypatch.setattr("secateur.data.opening.create_reader", refuse)
    with pytest.raises(InputError, match=r"photos cannot be read: Permission denied\."):
        evaluated(model, fill(tmp_path / "photos"))


def test_a_dataset_without_images_is_named(tmp_path, model, monkeypatch):
    nothing = np.zeros((0, 28, 28), np.uint8), np.zeros(0, np.uint8)
    monkeypatch.setattr("secateur.data.opening.load_images", lambda split: nothing)
    with pytest.raises(InputError, match="bundled holds no images; give another split or folder"):
        evaluated(model)


# --- images that cannot be read ---------------------------------------------------------------------------------------

DAMAGE = {"header": lambda data: b"no image" + data[8:], "body": lambda data: data[:-100]}


@pytest.fixture(params=DAMAGE)
def damaged(request, tmp_path):
    path = fill(tmp_path / "photos") / "bee" / "1.jpg"
    path.write_bytes(DAMAGE[request.param](path.read_bytes()))
    return request.param, tmp_path / "photos"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_read_is_named(damaged, model, workers):
    batches = evaluated(model, damaged[1], workers=workers)
    with pytest.raises(InputError, match=r"bee/1\.jpg cannot be read as an image \(.*\); repair or remove it, or pass"):
        list(batches)


def test_a_broken_header_is_met_before_the_work(damaged, model):
    batches = evaluated(model, damaged[1])
    if damaged[0] == "body":
        assert batches.check_readable() == 6
        return
    with pytest.raises(InputError, match=r"bee/1\.jpg cannot be read"):
        batches.check_readable()


@pytest.mark.parametrize("checked", [False, True])
def test_it_is_left_out_only_with_the_flag(damaged, model, checked):
    batches = evaluated(model, damaged[1], skip_unreadable=True)
    if checked:
        batches.check_readable()
    assert labels_of(batches) == [0, 0, 1, 2, 2]
    assert [name.endswith("bee/1.jpg") for name in batches.skipped] == [True]


def test_an_image_left_out_does_not_change_how_the_others_are_augmented(damaged, model):
    source = DataSource(data_dir=damaged[1], image_size=32, workers=0, skip_unreadable=True)
    unchecked, checked = (calibration_batches(source, model, samples=6, batch_size=6) for _ in range(2))
    checked.check_readable()
    assert torch.equal(next(iter(unchecked))[0], next(iter(checked))[0])


def test_nothing_readable_is_an_error_even_then(tmp_path, model):
    for path in fill(tmp_path / "photos").rglob("*.jpg"):
        path.write_bytes(b"no image")
    batches = evaluated(model, tmp_path / "photos", skip_unreadable=True)
    for use in (batches.check_readable, lambda: list(batches)):
        with pytest.raises(InputError, match=r"None of the images of .*photos could be read"):
            use()


def test_torchvisions_folders_are_read_and_name_their_files(tmp_path, model):
    folder = fill(tmp_path / "photos")
    batches = evaluated(model, folder, dataset="torch/image_folder")
    assert labels_of(batches) == [0, 0, 1, 1, 2, 2]
    (folder / "cat" / "0.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"cat/0\.jpg cannot be read as an image"):
        labels_of(batches)


# --- datasets by name -------------------------------------------------------------------------------------------------


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    """A dataset as the hub keeps one: parquet with embedded images."""
    monkeypatch.setattr(datasets.config, "HF_CACHE_HOME", str(tmp_path / "cache"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))})
    rows = {"image": [{"bytes": encoded(80 * i), "path": None} for i in (0, 1, 2, 0)], "label": [0, 1, 2, 0]}
    made(tmp_path / "hub")
    table = datasets.Dataset.from_dict(rows, features)
    table.to_parquet(tmp_path / "hub" / "validation-00000-of-00001.parquet")
    table.to_parquet(tmp_path / "hub" / "train-00000-of-00001.parquet")
    return tmp_path / "hub"


def test_a_dataset_of_the_hub_is_read(hub_folder, model):
    options = {"dataset": f"hfds/{hub_folder}", "data_dir": hub_folder.parent / "cache"}
    batches = evaluated(model, **options)
    assert labels_of(batches) == [0, 1, 2, 0] and batches.dataset.images.name(2) == "image 2"
    (hub_folder / "names.txt").write_text("cat\nant\nbee\n")
    assert labels_of(evaluated(model, **options, class_map=hub_folder / "names.txt")) == [1, 2, 0, 1]
    (hub_folder / "names.txt").write_text("cat\nant\n")
    with pytest.raises(InputError, match=r"image 1 of .* has the label 'bee', which the class map does not name"):
        list(evaluated(model, **options, class_map=hub_folder / "names.txt", skip_unreadable=True))
    with pytest.raises(InputError, match=r"has label 2 \(cat\), but the model has 2 classes"):
        evaluated(timm.create_model("resnet10t", num_classes=2), **options)


def test_a_dataset_of_the_hub_without_the_hub_is_one_sentence_soon(tmp_path, model, monkeypatch):
    monkeypatch.setattr("secateur.hub._hub_answers", lambda: False)
    start = time.perf_counter()
    with pytest.raises(InputError, match=r"hfds/nobody/nothing .*cannot be opened: Couldn't reach 'nobody/nothing'"):
        evaluated(model, dataset="hfds/nobody/nothing", data_dir=tmp_path)
    assert time.perf_counter() - start < 10


def test_a_missing_package_is_named(model, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="tfds/mnist needs the package tensorflow_datasets; install it with pip"):
        evaluated(model, dataset="tfds/mnist")
