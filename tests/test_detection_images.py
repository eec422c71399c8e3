"""Folders in COCO's format: what is found in them, how images and boxes reach a detector, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from detectors import NAMES, SIZES, coco_folder, detr, index_of, vit, write_index
from PIL import Image
from torch.testing import assert_close
from transformers import DetrImageProcessor, YolosConfig, YolosForObjectDetection

from secateur import DataSource, InputError, detection
from secateur.detection.coco import open_coco
from secateur.detection.images import image_processor, sizes_of


@pytest.fixture(scope="module")
def model():
    return detr()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return coco_folder(tmp_path_factory.mktemp("coco") / "coco")


@pytest.fixture
def folder(root, tmp_path):
    """A copy, to be spoilt."""
    return shutil.copytree(root, tmp_path / "coco")


def thing(box, category=1, image_id=10, **others):
    return {"id": 1, "image_id": image_id, "category_id": category, "bbox": box, "area": 1.0, "iscrowd": 0, **others}


def one_image(folder, things, size=(40, 20)):
    """A folder of one image of this size, and its only batch."""
    index = index_of(sizes=[size]) | {"annotations": things}
    return coco_folder(folder, index)


def only_batch(folder, model, **options):
    (batch,) = detection.calibration_batches(folder, model, batch_size=64, **options)
    return batch


# --- where they are ---------------------------------------------------------------------------------------------------


def coco_own(root, *splits, images="{}"):
    """COCO's own layout, made of the plain one."""
    (root / "annotations").mkdir()
    for split in splits:
        shutil.copy(root / "instances.json", root / "annotations" / f"instances_{split}.json")
        shutil.copytree(root / "images", root / images.format(split))
    (root / "instances.json").unlink()
    return root


@pytest.mark.parametrize(
    ("images", "split", "found"),
    [
        ("{}", "train", "train2017"),
        ("images/{}", "train", "train2017"),
        ("{}", "validation", "val2017"),
        ("{}", "val", "val2017"),
        ("{}", "val2017", "val2017"),
    ],
)
def test_cocos_own_layout_is_read_by_split(folder, images, split, found):
    pictures = open_coco(coco_own(folder, "train2017", "val2017", images=images), split).pictures
    assert len(pictures) == len(SIZES) and all(p.path.is_file() and p.path.parent.name == found for p in pictures)


def test_a_folder_with_one_index_serves_every_split(root):
    first, second = (open_coco(root, split).pictures for split in ("train", "validation"))
    assert [p.path for p in first] == [p.path for p in second] and first[0].path == root / "images" / "0.png"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "There is no data folder .*; give one in COCO's format"),
        (
            lambda f: (f / "instances.json").unlink(),
            r"has no COCO index of 'train': there is no instances\.json, and annotations/ holds nothing where"
            r" instances_train\*\.json was looked for",
        ),
        (lambda f: coco_own(f, "val2017"), r"annotations/ holds instances_val2017\.json where instances_train"),
        (lambda f: shutil.rmtree(f / "images"), "The images of .* are not there: no folder .*images"),
        (lambda f: (f / "instances.json").write_text("["), r"instances\.json is damaged"),
    ],
)
def test_a_folder_without_them_is_told_what_was_looked_for(folder, spoil, message):
    spoil(folder)
    with pytest.raises(InputError, match=message):
        open_coco(folder, "train")


def changed(**changes):
    """An index with its first row of one kind changed."""

    def change(index):
        for kind, row in changes.items():
            index[kind][0] |= row
        return index

    return change


WRONG = {
    "has no list of images, as COCO's format wants": lambda i: i | {"images": {}},
    "has no list of categories": lambda i: {k: v for k, v in i.items() if k != "categories"},
    "lists no images": lambda i: i | {"images": [], "annotations": []},
    r"images\[0\] has no id of type int": changed(images={"id": "10"}),
    r"images\[0\] has no width of type int": changed(images={"width": None}),
    r"images\[0\] has no file_name of type str": changed(images={"file_name": 3}),
    r"images\[0\] has no id of type int\.": lambda i: i | {"images": ["0.png"]},
    r"images\[0\] has 48×0 pixels": changed(images={"height": 0}),
    r"images\[0\] is the file '\.\./0\.png', which leaves the folder": changed(images={"file_name": "../0.png"}),
    r"images\[0\] is the file '/etc/passwd', which leaves": changed(images={"file_name": "/etc/passwd"}),
    "two of its images have the same id": changed(images={"id": 11}),
    "two of its categories have the same id": changed(categories={"id": 2}),
    r"categories\[0\] has no name of type str": changed(categories={"name": 1}),
    r"annotations\[0\] is of the image 99, which images do not list": changed(annotations={"image_id": 99}),
    r"annotations\[0\] has the category 3, which categories do not list": changed(annotations={"category_id": 3}),
    r"annotations\[0\] has no bbox of type list": changed(annotations={"bbox": None}),
    r"the box \[1, 2, 3\] of annotations\[0\] is not four numbers; a box is x, y": changed(
        annotations={"bbox": [1, 2, 3]}
    ),
    r"the box \[1, 2, 3, '4'\] of annotations\[0\] is not four": changed(annotations={"bbox": [1, 2, 3, "4"]}),
    r"annotations\[0\] has a negative side": changed(annotations={"bbox": [1, 2, -3, 4]}),
    r"the box \[40, 2, 9\.5, 4\] of annotations\[0\] stands over the image; .* within the 48×32 of 0\.png": changed(
        annotations={"bbox": [40, 2, 9.5, 4]}
    ),
    r"annotations\[0\] stands over the image": changed(annotations={"bbox": [1, -2, 3, 4]}),
    r"annotations\[0\] has the area -1; it must be a number from 0": changed(annotations={"area": -1}),
}


@pytest.mark.parametrize("message", WRONG)
def test_an_index_with_a_mistake_is_refused_by_the_row(folder, message):
    write_index(folder, WRONG[message](index_of()))
    with pytest.raises(InputError, match=message):
        open_coco(folder, "train")


# --- what a detector is given -----------------------------------------------------------------------------------------


def test_boxes_are_fractions_of_their_own_image_and_not_of_the_padded_one(folder, model):
    batch = only_batch(folder, model)
    index = json.loads((folder / "instances.json").read_text())
    pictures = detection.calibration_batches(folder, model).pictures
    for i, (picture, target) in enumerate(zip(pictures, batch["labels"], strict=True)):
        rows = [a for a in index["annotations"] if a["image_id"] == picture.number]
        truth = [[(x + w / 2), (y + h / 2), w, h] for x, y, w, h in (a["bbox"] for a in rows)]
        size = torch.tensor([picture.width, picture.height] * 2)
        assert_close(target["boxes"], torch.tensor(truth).reshape(-1, 4) / size)
        assert target["class_labels"].tolist() == [a["category_id"] for a in rows]
        assert target["orig_size"].tolist() == [picture.height, picture.width]
        height, width = (int(batch["pixel_mask"][i].amax(axis).sum()) for axis in (1, 0))
        assert height / picture.height == pytest.approx(width / picture.width, rel=0.05)
    assert batch["pixel_values"].shape[2:] == batch["pixel_mask"].shape[1:]
    assert {len(t["boxes"]) for t in batch["labels"]} == {0, 2}


def test_pixels_are_the_processors_and_what_is_beside_them_is_zero(root, model):
    batches = detection.calibration_batches(root, model, batch_size=64)
    (batch,) = batches
    for picture, pixels, mask in zip(batches.pictures, batch["pixel_values"], batch["pixel_mask"], strict=True):
        image = Image.open(picture.path)
        ready = model.image_processor(images=[image], return_tensors="pt")["pixel_values"][0]
        assert torch.equal(pixels[:, : ready.shape[1], : ready.shape[2]], ready)
        assert mask[: ready.shape[1], : ready.shape[2]].all() and int(mask.sum()) == ready[0].numel()
        assert not pixels[:, mask == 0].any()


@pytest.mark.parametrize(
    ("side", "sizes"),
    [(None, {"shortest_edge": 800, "longest_edge": 1333}), (480, {"shortest_edge": 480, "longest_edge": 800})],
)
def test_the_shorter_side_can_be_chosen_and_the_longer_goes_with_it(side, sizes):
    assert sizes_of(DetrImageProcessor(), side) == sizes


def test_a_side_of_no_pixels_is_refused():
    with pytest.raises(InputError, match="image_size is 0; give a whole number from 1"):
        sizes_of(DetrImageProcessor(), 0)


def test_an_image_size_is_that_of_the_shorter_side_unless_the_longer_grows_too_long(root, model):
    batches = detection.evaluation_batches(DataSource(data_dir=root, image_size=16), model, batch_size=64)
    (batch,) = batches
    found = [tuple(int(mask.amax(axis).sum()) for axis in (0, 1)) for mask in batch["pixel_mask"]]
    assert found == [(24, 16), (16, 20), (16, 16), (12, 28), (24, 16), (20, 16)]


def test_crowds_and_flat_boxes_are_kept_from_the_loss_and_shown_to_the_evaluator(tmp_path, model):
    crowd, flat = thing([0, 0, 40, 20], 2, iscrowd=1), thing([5, 5, 0, 3], 5)
    batch = only_batch(one_image(tmp_path / "coco", [crowd, thing([8, 4, 16, 8]), flat]), model)
    (target,) = batch["labels"]
    assert target["class_labels"].tolist() == [1]
    assert_close(target["boxes"], torch.tensor([[0.4, 0.4, 0.4, 0.4]]))
    truth = target["truth"]
    assert truth["labels"].tolist() == [2, 1, 5] and truth["crowd"].tolist() == [True, False, False]
    assert truth["boxes"].tolist() == [[0, 0, 40, 20], [8, 4, 16, 8], [5, 5, 0, 3]]


def test_a_box_a_little_over_the_edge_is_cut_off_there(tmp_path, model):
    batch = only_batch(one_image(tmp_path / "coco", [thing([30, -0.5, 10.9, 20.5])]), model)
    assert_close(batch["labels"][0]["boxes"], torch.tensor([[0.875, 0.5, 0.25, 1.0]]))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_an_image_is_turned_as_its_camera_says(tmp_path, model, orientation):
    seen = np.random.default_rng(0).integers(0, 256, (20, 40, 3), dtype=np.uint8)  # as the index has it
    turns = {1: 0, 3: 2, 6: 1, 8: 3}[orientation]  # what a viewer undoes
    stored = Image.fromarray(np.rot90(seen, turns).copy())
    exif = Image.Exif()
    exif[0x0112] = orientation
    root = one_image(tmp_path / "coco", [thing([8, 4, 16, 8])])
    stored.save(root / "images" / "0.png", exif=exif)
    upright = model.image_processor(images=[Image.fromarray(seen)], return_tensors="pt")["pixel_values"]
    assert detection.calibration_batches(root, model).check_readable() == 1
    assert torch.equal(only_batch(root, model)["pixel_values"], upright)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_grey_and_see_through_images_become_coloured_ones(tmp_path, model, mode):
    root = one_image(tmp_path / "coco", [thing([8, 4, 16, 8])])
    Image.open(root / "images" / "0.png").convert(mode).save(root / "images" / "0.png")
    assert only_batch(root, model)["pixel_values"].shape[1] == 3


def test_the_same_seed_gives_the_same_images_on_every_pass(root, model):
    batches = detection.calibration_batches(root, model, samples=4, seed=1, batch_size=2)
    first, second = list(batches), list(detection.calibration_batches(root, model, samples=4, seed=1, batch_size=2))
    for one, two, three in zip(first, batches, second, strict=True):
        assert torch.equal(one["pixel_values"], two["pixel_values"])
        assert torch.equal(one["pixel_values"], three["pixel_values"])
    numbers = [p.number for p in batches.pictures]
    others = [p.number for p in detection.calibration_batches(root, model, samples=4, seed=2).pictures]
    assert len(set(numbers)) == 4 and numbers != others
    assert len(batches) == 2 and batches.samples == 4


def test_no_image_is_drawn_twice(root, model):
    assert detection.calibration_batches(root, model, samples=100).samples == len(SIZES)


def test_evaluation_takes_all_images_or_the_same_few(root, model):
    assert [p.number for p in detection.evaluation_batches(root, model).pictures] == list(range(10, 16))
    few = [[p.number for p in detection.evaluation_batches(root, model, limit=3, seed=1).pictures] for _ in range(2)]
    assert few[0] == few[1] == sorted(few[0]) and len(few[0]) == 3


def test_a_detector_that_takes_no_mask_gets_none(root):
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    yolos = YolosForObjectDetection(
        YolosConfig(image_size=[32, 32], patch_size=16, num_detection_tokens=3, num_labels=6, **size)
    )
    batch = only_batch(DataSource(data_dir=root, image_size=32), yolos)
    assert set(batch) == {"pixel_values", "labels"} and yolos(**batch).loss > 0


# --- which label is which category ------------------------------------------------------------------------------------

LABELS = {  # the model's labels, and what the categories 1, 2 and 5 become
    "names of their own": ({i: f"LABEL_{i}" for i in range(6)}, [1, 2, 5]),
    "the same names": ({0: "Bar", 1: "disc ", 2: "square"}, [1, 2, 0]),
    "the same names at the same numbers": ({1: "disc", 2: "square", 5: "bar"}, [1, 2, 5]),
    "some of the names, all at their numbers": (dict(enumerate(["n/a", "disc", "box", "c", "d", "rod"])), [1, 2, 5]),
}


def with_labels(labels):
    model = detr(num_labels=6)
    model.config.id2label = labels
    return model


@pytest.mark.parametrize("kind", LABELS)
def test_categories_are_the_labels_of_their_name_or_else_of_their_number(root, kind):
    labels, expected = LABELS[kind]
    found = detection.calibration_batches(root, with_labels(labels)).labels
    assert [found[category] for category in NAMES] == expected


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({0: "disc", 1: "square"}, "the category 'bar' is none of the model's labels, though others are; give"),
        (None, r"the category 5 \(bar\) is none of the model's 3 labels; number the categories as the model does"),
    ],
)
def test_a_category_that_is_none_of_the_labels_is_refused(root, labels, message):
    model = detr(num_labels=3) if labels is None else with_labels(labels)
    with pytest.raises(InputError, match=message):
        detection.calibration_batches(root, model)


# --- images that cannot be used ---------------------------------------------------------------------------------------


def no_image(path):
    path.write_bytes(b"no image")


def half_an_image(path):
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize("spoil", [no_image, half_an_image, lambda path: path.unlink()])
def test_an_unreadable_image_is_named_or_left_out(folder, model, spoil):
    spoil(folder / "images" / "3.png")
    with pytest.raises(InputError, match=r"3\.png cannot be read as an image .* repair or remove it, or pass --skip"):
        list(detection.calibration_batches(folder, model))
    batches = detection.evaluation_batches(DataSource(data_dir=folder, skip_unreadable=True), model)
    assert sum(len(batch["labels"]) for batch in batches) == len(SIZES) - 1
    assert list(batches.skipped) == [str(folder / "images" / "3.png")]


def test_a_missing_image_is_told_before_the_first_is_decoded(folder, model):
    (folder / "images" / "3.png").unlink()
    with pytest.raises(InputError, match=r"3\.png cannot be read as an image \(.*No such file"):
        detection.calibration_batches(folder, model).check_readable()
    batches = detection.calibration_batches(DataSource(data_dir=folder, skip_unreadable=True), model)
    assert batches.check_readable() == batches.samples == len(SIZES) - 1


def test_an_image_of_another_size_than_its_index_says_is_refused_though_skipping_is_allowed(folder, model):
    Image.new("RGB", (48, 33)).save(folder / "images" / "0.png")
    batches = detection.calibration_batches(DataSource(data_dir=folder, skip_unreadable=True), model)
    for use in (batches.check_readable, lambda: list(batches)):
        with pytest.raises(InputError, match=r"0\.png .* has 48×33 pixels, but its index says 48×32"):
            use()


def test_no_readable_image_at_all_is_an_error(folder, model):
    for path in (folder / "images").iterdir():
        no_image(path)
    batches = detection.calibration_batches(DataSource(data_dir=folder, skip_unreadable=True), model)
    with pytest.raises(InputError, match=r"None of the images of .* could be read"):
        list(batches)
    with pytest.raises(InputError, match=r"None of the images of .* could be read"):
        batches.check_readable()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "samples is 0; give a whole number from 1"),
        ({"seed": -1}, "seed is -1; give a whole number from 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"source": DataSource()}, "works from a folder in COCO's format alone, not from bundled; give a data folder"),
        ({"source": DataSource(data_dir=".", class_map="names.txt")}, "works from a folder in COCO's format alone"),
        (
            {"model": vit()},
            "The ViTForImageClassification has no image processor that finds objects; give the model an",
        ),
        ({"model": torch.nn.Linear(2, 2)}, "The Linear has no image processor that finds objects"),
    ],
)
def test_a_mistake_in_the_arguments_is_named(root, model, arguments, message):
    with pytest.raises(InputError, match=message):
        detection.calibration_batches(**({"source": root, "model": model} | arguments))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_none_is_no_limit_of_zero(root, model, limit):
    with pytest.raises(InputError, match=f"limit is {limit}; give a whole number from 1"):
        detection.evaluation_batches(root, model, limit=limit)


def test_a_detector_without_a_processor_has_its_architectures(model):
    bare = detr()
    del bare.image_processor
    assert isinstance(image_processor(bare), DetrImageProcessor) and image_processor(bare).size["shortest_edge"] == 800
    assert image_processor(model).size["shortest_edge"] == 32
