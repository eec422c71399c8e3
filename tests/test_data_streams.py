"""Datasets that can only be read in order: webdataset's shards, and the hub's streams."""

import gc
import io
import json
import tarfile

import datasets
import numpy as np
import pytest
import timm
import torch
from PIL import Image

from secateur.data import DataSource, calibration_batches, evaluation_batches
from secateur.errors import InputError

# webdataset leaves its shards open until they are collected, which the fixture below makes happen within the test
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed file")


@pytest.fixture(autouse=True)
def _collected():
    yield
    gc.collect()


@pytest.fixture(scope="module")
def model():
    return timm.create_model("resnet10t", num_classes=3)


def picture(shade):
    file = io.BytesIO()
    Image.new("RGB", (40, 40), (shade, shade, shade)).save(file, "JPEG")
    return file.getvalue()


def shards(folder, broken=(), labels=(0, 1, 2) * 4, info=True):
    """Two shards of six images, the shade of each ten times its number."""
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in range(6 * shard, 6 * shard + 6):
                for ending, data in (("jpg", b"?" if i in broken else picture(10 * i)), ("cls", b"%d" % labels[i])):
                    entry = tarfile.TarInfo(f"{i:02}.{ending}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    split = {"num_samples": 12, "filenames": ["0.tar", "1.tar"], "shard_lengths": [6, 6]}
    if info:
        splits = {name: {"name": name, **split} for name in ("train", "validation")}
        (folder / "_info.json").write_text(json.dumps({"splits": splits}))
    return folder


def source(folder, **options):
    return DataSource("wds/shards", folder, image_size=32, **options)


def labels_of(batches):
    return [int(label) for _, labels in batches for label in labels]


def together(batches):
    return torch.cat([images for images, _ in batches])


def test_evaluation_takes_each_image_once_in_order(tmp_path, model):
    batches = evaluation_batches(source(shards(tmp_path / "w")), model, batch_size=5)
    assert labels_of(batches) == [0, 1, 2] * 4 and len(batches) == 3
    assert together(batches).mean((1, 2, 3)).diff().gt(0).all() and batches.check_readable() == 12


@pytest.mark.parametrize(("limit", "found"), [(5, 5), (40, 12)])
def test_a_limit_is_no_more_than_there_is(tmp_path, model, limit, found):
    batches = evaluation_batches(source(shards(tmp_path / "w")), model, limit=limit)
    assert labels_of(batches) == [0, 1, 2] * (found // 3) + [0, 1][: found % 3] and batches.samples == found


def test_the_same_seed_gives_the_same_images_on_every_pass_and_another_others(tmp_path, model):
    folder = shards(tmp_path / "w")
    first, again, other = (calibration_batches(source(folder), model, samples=20, seed=s) for s in (0, 0, 1))
    assert torch.equal(together(first), together(first)) and torch.equal(together(first), together(again))
    assert len(labels_of(first)) == 20 and not torch.equal(together(first), together(other))


def test_the_callers_random_numbers_are_not_used_up(tmp_path, model):
    batches = calibration_batches(source(shards(tmp_path / "w")), model, samples=6)
    torch.manual_seed(0), np.random.seed(0)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(0), np.random.seed(0)
    together(batches)
    assert (torch.rand(1), np.random.rand()) == expected


def test_an_image_that_cannot_be_read_is_named_and_left_out_only_with_the_flag(tmp_path, model):
    folder = shards(tmp_path / "w", broken=(4, 11))
    with pytest.raises(InputError, match=r"image 4 of .* cannot be read as an image \(UnidentifiedImageError"):
        list(evaluation_batches(source(folder), model))
    batches = evaluation_batches(source(folder, skip_unreadable=True), model)
    assert labels_of(batches) == [0, 1, 2, 0, 2, 0, 1, 2, 0, 1]
    assert [name.split()[1] for name in batches.skipped] == ["4", "11"]


def test_a_missing_shard_is_named(tmp_path, model):
    folder = shards(tmp_path / "w")
    (folder / "1.tar").unlink()
    with pytest.raises(InputError, match=r"image 6 of .*1\.tar"):
        list(evaluation_batches(source(folder), model))


def test_labels_beyond_the_classes_are_named_even_with_the_flag(tmp_path, model):
    folder = shards(tmp_path / "w", labels=[0, 1, 7, *[0] * 9])
    with pytest.raises(InputError, match=r"image 2 of .* has label 7, but the model has classes 0 to 2"):
        list(evaluation_batches(source(folder, skip_unreadable=True), model))


def test_a_negative_label_is_no_label(tmp_path, model):
    with pytest.raises(InputError, match=r"image 1 of .* has no label, but the model has classes"):
        list(evaluation_batches(source(shards(tmp_path / "w", labels=[0, -1, *[0] * 10])), model))


def test_a_label_that_is_no_number_is_named(model, monkeypatch):
    given = [(Image.new("RGB", (40, 40)), [0, 1])]
    monkeypatch.setattr("secateur.data.choice.open_stream", lambda *_: given)
    with pytest.raises(InputError, match=r"image 0 of .* has the label \[0, 1\], which is not the number of one class"):
        list(evaluation_batches(source("somewhere"), model))


def test_what_does_not_open_is_said_before_the_work(tmp_path, model):
    with pytest.raises(InputError, match="cannot be opened: split spring not found"):
        evaluation_batches(source(shards(tmp_path / "w"), split="spring"), model)
    batches = calibration_batches(source(tmp_path / "w", split="spring"), model)
    with pytest.raises(InputError, match="cannot be opened: split spring not found"):
        batches.check_readable()


def test_a_stream_that_breaks_off_says_where(tmp_path, model):
    names = tmp_path / "names.txt"
    names.write_text("ant\n")  # the shards' labels are numbers
    batches = evaluation_batches(source(shards(tmp_path / "w"), class_map=names), model)
    with pytest.raises(InputError, match="broke off after 0 images: KeyError 0"):
        list(batches)


def test_a_stream_of_unknown_length_needs_a_limit(model, monkeypatch):
    monkeypatch.setattr("secateur.data.choice.open_stream", lambda *_: [])
    with pytest.raises(InputError, match="does not say how many images it has; give a limit"):
        evaluation_batches(source("somewhere"), model)


def test_the_hubs_stream_is_read(tmp_path, model):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    rows = {"image": [{"bytes": picture(20 * i), "path": None} for i in range(5)], "label": [0, 1, 2, 0, 1]}
    (tmp_path / "hub").mkdir()
    for split in ("train", "validation"):
        datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "hub" / f"{split}-00000-of-00001.parquet")
    options = DataSource(f"hfids/{tmp_path / 'hub'}", tmp_path / "cache", image_size=32)
    assert labels_of(evaluation_batches(options, model, limit=9)) == [0, 1, 2, 0, 1]
    with pytest.raises(InputError, match="does not say how many images it has; give a limit"):
        evaluation_batches(options, model)
    batches = calibration_batches(options, model, samples=12)
    assert labels_of(batches) == labels_of(batches) and len(labels_of(batches)) == 12
