"""Models of transformers and detection on the command line: from a folder of images to a pruned model that opens."""

import json
import re
import shutil

import pytest
import torch
from detectors import coco_folder, detr, index_of, resnet, saved, vit, write_index
from safetensors.torch import load_file

import secateur
from secateur import detection
from secateur.checkpoint import load_masks
from secateur.manifest import read_manifest

INSIDE = ("--layers", "model.*")
QUICK = (*INSIDE, "--method", "cap:block=16", "--image-size", "24")


@pytest.fixture(scope="session")
def coco(tmp_path_factory):
    return coco_folder(tmp_path_factory.mktemp("coco") / "coco")


@pytest.fixture(scope="session")
def detector(tmp_path_factory):
    return saved(detr(), tmp_path_factory.mktemp("models") / "detr")


@pytest.fixture(scope="session")
def classifier(tmp_path_factory):
    return saved(vit(), tmp_path_factory.mktemp("models") / "vit")


def test_a_detector_is_pruned_measured_inspected_and_opened(call, detector, coco, tmp_path):
    out = tmp_path / "out"
    task = ("--task", "detection", "--data-dir", coco)
    found = call("prune", "--model", detector, *task, *QUICK, "--sparsity", "0.5", "--out", out, "--json")
    assert found.code == 0, found.err
    document = json.loads(found.out)
    (row,) = document["rows"]
    assert row["achieved"] == pytest.approx(0.5, abs=1e-3) and row["predicted_loss_increase"] > 0
    assert set(document["dense"]) == {
        *detection.DetectionEvaluation.METRICS, "loss", "images", "seconds",
    } and document["dense"]["images"] == 6  # fmt: skip
    data = read_manifest(out)["run"]["data"]
    assert data["samples"] == 6 and data["augment"] == "validation" and data["evaluation"] == str(coco)

    measured = json.loads(call("eval", "--model", out, *task, "--image-size", "24", "--json").out)
    assert {name: measured[name] for name in ("ap", "ap50", "loss")} == pytest.approx(
        {name: row[name] for name in ("ap", "ap50", "loss")}
    )
    inspected = call("inspect", out, "--json")
    assert inspected.code == 0 and json.loads(inspected.out)["zeros"] == row["zeros"]

    from transformers import DetrForObjectDetection

    opened = DetrForObjectDetection.from_pretrained(out, use_safetensors=True).eval()
    ours, masks = secateur.load(out)
    image = torch.randn(1, 3, 32, 40)
    assert torch.equal(opened(image).pred_boxes, ours(image).pred_boxes)
    assert sum(int((opened.state_dict()[n] == 0).sum()) for n in masks) == row["zeros"]
    assert (out / "preprocessor_config.json").is_file()


def test_tables_show_average_precision(call, detector, coco, tmp_path):
    task = ("--task", "detection", "--data-dir", coco, "--image-size", "24")
    found = call("prune", "--model", detector, *task, *INSIDE, "--method", "magnitude", "--out", tmp_path / "out")
    assert re.search(r"^Dense: AP \d+\.\d\d %, loss \d+\.\d+ on 6 images\.$", found.out, re.MULTILINE)
    assert re.search(r"AP %\s+AP50 %\s+AP75 %\s+loss", found.out) and "top-1" not in found.out + found.err
    found = call("eval", "--model", detector, *task)
    assert re.search(r"AP %\s+AP50 %\s+AP75 %\s+AP small %\s+AP medium %\s+AP large %\s+loss", found.out)
    assert re.search(
        r"^ +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +– +– +\d+\.\d+ +\d+\.\d$", found.out, re.MULTILINE
    )


def test_methods_are_compared_on_a_detector_and_reported(call, detector, coco, tmp_path):
    words = ("--methods", "magnitude", "cap:block=16", "--sparsity", "0.5", "0.75", *INSIDE, "--samples", "4")
    data = ("--task", "detection", "--data-dir", coco, "--image-size", "24", "--eval-samples", "4")
    found = call("compare", "--model", detector, *data, *words, "--out", tmp_path / "out", "--json")
    document = json.loads(found.out)
    assert document["metric"] == "ap" and set(document["dense"]) == {*detection.DetectionEvaluation.METRICS, "loss"}
    assert [row["ap"] is not None and row["ap50"] is not None for row in document["rows"]] == [True] * 4
    assert found.err.count("AP ") == 4
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Average precision against sparsity" in page and "<th>AP, %<th>Change<th>AP50, %" in page
    assert "op-1" not in page
    assert call("inspect", tmp_path / "out").code == 0
    table = call("compare", "--model", detector, *data, *words).out
    assert re.search(r"dense: AP \d+\.\d\d %, loss", table) and "AP75 %" in table


def test_a_configuration_file_may_name_the_task(call, detector, coco, tmp_path):
    lines = (
        f"model: {detector}\ntask: detection\ndata-dir: {coco}\nmethod: cap:block=16\nlayers: model.*\nimage-size: 24\n"
    )
    (tmp_path / "run.yaml").write_text(lines)
    assert call("prune", "--config", tmp_path / "run.yaml", "--out", tmp_path / "a").code == 0
    words = ("--task", "detection", "--data-dir", coco, *QUICK)
    assert call("prune", "--model", detector, *words, "--out", tmp_path / "b").code == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_cocos_own_layout_gives_each_work_its_split(call, detector, tmp_path):
    for split, sizes in (("train2017", [(40, 32)] * 4), ("val2017", [(32, 32)] * 2)):
        folder = coco_folder(tmp_path / split, index_of(sizes=sizes))
        (folder / "images").rename(tmp_path / f"{split}-images")
        (tmp_path / "coco" / "annotations").mkdir(parents=True, exist_ok=True)
        shutil.move(folder / "instances.json", tmp_path / "coco" / "annotations" / f"instances_{split}.json")
        shutil.move(tmp_path / f"{split}-images", tmp_path / "coco" / split)
    words = ("--task", "detection", "--data-dir", tmp_path / "coco", *QUICK, "--out", tmp_path / "out", "--json")
    found = call("prune", "--model", detector, *words)
    assert json.loads(found.out)["dense"]["images"] == 2
    assert read_manifest(tmp_path / "out")["run"]["gradients"] == 4


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_a_classifier_of_transformers_goes_through_every_command(call, images, tmp_path, name):
    folder = saved({"vit": vit, "resnet": resnet}[name](), tmp_path / "model")
    data = ("--data-dir", images, "--workers", "0", *(() if name == "vit" else ("--image-size", "32")))
    words = ("--samples", "12", "--method", "cap:block=16", "--out", tmp_path / "out", "--json")
    found = call("prune", "--model", folder, *data, *words)
    assert found.code == 0, found.err
    (row,) = json.loads(found.out)["rows"]
    assert row["achieved"] == 0.5 and row["top1"] is not None
    weights, masks = load_file(tmp_path / "out" / "model.safetensors"), load_masks(tmp_path / "out")
    assert sum(int((weights[n] == 0).sum()) for n in masks) == row["zeros"]
    assert call("inspect", tmp_path / "out").code == 0
    measured = json.loads(call("eval", "--model", tmp_path / "out", *data, "--json").out)
    assert (measured["top1"], measured["loss"]) == pytest.approx((row["top1"], row["loss"]))
    compared = call("compare", "--model", folder, *data, "--methods", "magnitude", "--sparsity", "0.5", "--json")
    assert json.loads(compared.out)["dense"]["top1"] == pytest.approx(json.loads(found.out)["dense"]["top1"])
    listed = json.loads(call("layers", folder, "--json").out)
    assert listed["prunable"] == row["total"]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(call, detector, classifier, coco, tmp_path):
    """Run `prune` on copies that may be spoilt; it must fail in one sentence and write nothing."""

    def run(message, *words, spoil=lambda folder: None, model=detector):
        folder = shutil.copytree(coco, tmp_path / "coco")
        spoil(folder)
        words = [str(folder) if word == "COCO" else word for word in words]
        found = call("prune", "--model", model, *words, "--out", tmp_path / "out", *INSIDE)
        assert found.code == 2 and found.out == "" and not (tmp_path / "out").exists()
        (sentence,) = found.err.splitlines()
        assert re.search(message, sentence) and re.fullmatch(r"secateur: .*\.", sentence), sentence

    return run


DETECTION = ("--task", "detection", "--data-dir", "COCO")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "detection", "--data-dir", "nowhere"), "There is no data folder nowhere"),
        (
            (*DETECTION, "--dataset", "torch/cifar10"),
            "--dataset is of classification; leave it out with --task detection",
        ),
        ((*DETECTION, "--aa", "rand-m9"), "--aa is of classification"),
        ((*DETECTION, "--reprob", "0.1"), "--reprob is of classification"),
        ((*DETECTION, "--class-map", "names.txt"), "--class-map is of classification"),
        ((*DETECTION, "--workers", "2"), "--workers is of classification"),
    ],
)
def test_options_of_the_other_task_are_refused_before_the_model_is_loaded(refused, monkeypatch, words, message):
    monkeypatch.setattr("secateur.cli.sources.load_model", lambda *a, **k: pytest.fail("a model was loaded"))
    refused(message, *words)


@pytest.mark.parametrize("gone", ["instances.json", "images"])
def test_a_folder_without_index_or_images_is_refused_before_the_model_is_loaded(refused, monkeypatch, gone):
    monkeypatch.setattr("secateur.cli.sources.load_model", lambda *a, **k: pytest.fail("a model was loaded"))
    message = {"instances.json": "has no COCO index of 'train'", "images": "The images of .* are not there"}[gone]
    refused(message, *DETECTION, spoil=lambda folder: (folder / gone).rename(folder / "away"))


def with_change(change):
    def spoil(folder):
        index = json.loads((folder / "instances.json").read_text())
        change(index)
        write_index(folder, index)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (with_change(lambda i: i["annotations"][0].update(category_id=9)), "has the category 9, which categories do"),
        (with_change(lambda i: i["annotations"][0].update(bbox=[40, 2, 30, 4])), "stands over the image; a box is"),
        (with_change(lambda i: i.update(images=[], annotations=[])), "lists no images"),
        (lambda f: (f / "images" / "2.png").unlink(), r"2\.png cannot be read as an image .*or pass --skip-unreadable"),
        (with_change(lambda i: i["categories"][2].update(id=7) or [a.update(category_id=7) for a in i["annotations"]]),
         r"the category 7 \(bar\) is none of the model's 6 labels"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_data_is_told_before_the_first_gradient(refused, monkeypatch, spoil, message):
    monkeypatch.setattr("secateur.gradients.stream.summed_loss", lambda *a: pytest.fail("a loss was made"))
    refused(message, *DETECTION, spoil=spoil)


def test_detection_without_a_folder_is_told_what_to_give(refused):
    refused("--task detection needs images with boxes: give --data-dir FOLDER in COCO's format", "--task", "detection")


def test_a_model_that_finds_no_objects_is_refused(refused, classifier):
    message = (
        "A ViTForImageClassification finds no objects, so --task detection has nothing to measure; give a detector"
    )
    refused(message, *DETECTION, model=classifier)


def test_magnitude_needs_no_images_with_boxes(call, detector, tmp_path):
    words = ("--task", "detection", "--method", "magnitude", "--no-evaluate", "--out", tmp_path / "out", "--json")
    found = call("prune", "--model", detector, *words)
    assert found.code == 0 and json.loads(found.out)["rows"][0]["ap"] is None


def test_a_detector_as_a_classifier_is_told_the_task(refused):
    message = "A DetrForObjectDetection finds objects in images; pass --task detection, and a folder in COCO's format"
    refused(message, "--data-dir", "COCO")


def test_what_must_be_installed_is_said_before_the_model_is_loaded(refused, monkeypatch):
    monkeypatch.setattr("secateur.cli.sources.load_model", lambda *a, **k: pytest.fail("a model was loaded"))
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "scipy" else find(name))
    refused(
        r'--task detection needs the package scipy; install it with pip install "secateur\[detection\]"', *DETECTION
    )


def test_unreadable_images_may_be_left_out_by_name(call, detector, coco, tmp_path):
    folder = shutil.copytree(coco, tmp_path / "coco")
    (folder / "images" / "1.png").write_bytes(b"no image")
    words = ("--task", "detection", "--data-dir", folder, "--image-size", "24", "--skip-unreadable", "--json")
    found = call("eval", "--model", detector, *words)
    assert json.loads(found.out)["images"] == 5 and re.search(
        r"Left out .*1\.png: cannot identify image file", found.err
    )
