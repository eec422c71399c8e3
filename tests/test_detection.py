"""Average precision against values worked out by hand, and a detector's evaluation from end to end."""

import math

import numpy as np
import pytest
import torch
from detectors import coco_folder, detr, index_of
from torch import nn
from transformers import DetrImageProcessor

from secateur import InputError, NumericsError, detection
from secateur.batches import cut, samples_in
from secateur.detection.precision import average_precisions

FAR = 1e4  # a logit that is certain


class Knowing(nn.Module):
    """A detector that is told the truth, moves every box by `shift` of its width, and says it with growing doubt."""

    def __init__(self, shift=0.0, labels=6):
        super().__init__()
        self.shift, self.labels = shift, labels
        self.image_processor = DetrImageProcessor(size={"shortest_edge": 32, "longest_edge": 56})

    def forward(self, pixel_values, pixel_mask, labels):
        logits = torch.zeros(len(labels), 4, self.labels + 1)
        logits[..., -1] = FAR
        boxes = torch.zeros(len(labels), 4, 4)
        for i, target in enumerate(labels):
            count = len(target["boxes"])
            moved = target["boxes"] + torch.tensor([self.shift, 0, 0, 0]) * target["boxes"][:, 2:3]
            boxes[i, :count] = moved
            logits[i, range(count), target["class_labels"]] = 2 * FAR
        loss = torch.tensor(float(len(labels)))
        return type("Output", (), {"logits": logits, "pred_boxes": boxes, "loss": loss})()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return coco_folder(tmp_path_factory.mktemp("coco") / "coco")


def test_a_detector_that_knows_the_truth_has_all_of_it(root):
    model = Knowing()
    found = detection.evaluate(model, detection.evaluation_batches(root, model, batch_size=2))
    assert (found.ap, found.ap50, found.ap75) == pytest.approx((100, 100, 100), abs=1e-6)
    assert found.ap_small == pytest.approx(100) and found.ap_medium is None and found.ap_large is None
    assert found.images == 6 and found.loss == 1 and found.seconds > 0


MOVED = {0.05: (90, 100), 0.1: (70, 100), 0.15: (50, 0), 0.2: (40, 0), 0.24: (30, 0), 0.3: (10, 0), 0.4: (0, 0)}


@pytest.mark.parametrize("shift", MOVED)
def test_boxes_moved_sideways_count_where_their_overlap_reaches(root, shift):
    """Moved by t of its width, a box overlaps by (1 − t)/(1 + t): 0.905, 0.818, 0.739, 0.667, 0.613, 0.538, 0.429."""
    model, (ap, ap75) = Knowing(shift), MOVED[shift]
    found = detection.evaluate(model, detection.evaluation_batches(root, model))
    assert (found.ap, found.ap75) == (pytest.approx(ap), pytest.approx(ap75))
    assert found.ap50 == pytest.approx(100 * (ap > 0))


def truth(*boxes, labels=None, crowd=None, area=400.0):
    count = len(boxes)
    return {
        "labels": torch.tensor(labels or [1] * count), "boxes": torch.tensor(boxes, dtype=torch.float64).view(-1, 4),
        "areas": torch.full((count,), area), "crowd": torch.tensor(crowd or [False] * count),
    }  # fmt: skip


def found(*boxes, labels=None, scores=None):
    corners = [[x, y, x + w, y + h] for x, y, w, h in boxes]
    return {
        "labels": torch.tensor(labels or [1] * len(boxes)), "boxes": torch.tensor(corners).view(-1, 4),
        "scores": torch.tensor(scores or [1 - 0.1 * i for i in range(len(boxes))]),
    }  # fmt: skip


A, B, C = (0.0, 0.0, 20.0, 20.0), (40.0, 40.0, 20.0, 20.0), (0.0, 70.0, 20.0, 20.0)
HANDMADE = {  # truths, found, AP: recall is sampled at 0, 0.01, …, 1
    "half of two": ([truth(A, B)], [found(A)], 51 / 101),
    "the second is wrong": ([truth(A, B)], [found(A, C, B)], (51 + 50 * 2 / 3) / 101),
    "the first is wrong": ([truth(A)], [found(C, A)], 1 / 2),
    "found twice": ([truth(A, B)], [found(A, A, B)], (51 + 50 * 2 / 3) / 101),
    "another label": ([truth(A)], [found(A, labels=[2])], 0.0),
    "two labels, one of them found": ([truth(A, B, labels=[1, 2])], [found(A)], 1 / 2),
    "a label that is nowhere counts for nothing": ([truth(A)], [found(A, B, labels=[1, 5], scores=[0.1, 0.9])], 1.0),
    "the other image": ([truth(A), truth(B)], [found(A), found(A)], 51 / 101),
    "scores order images among each other": (
        [truth(A), truth(B)], [found(A, scores=[0.5]), found(C, B, scores=[0.9, 0.4])],
        (2 / 3),
    ),
    "a crowd forgives what lies in it": ([truth(A, B, crowd=[False, True])], [found(B, A)], 1.0),
    "nothing found": ([truth(A)], [found()], 0.0),
}  # fmt: skip


@pytest.mark.parametrize("kind", HANDMADE)
def test_average_precision_is_the_one_worked_out_by_hand(kind):
    truths, boxes, expected = HANDMADE[kind]
    figures = average_precisions(truths, boxes)
    assert figures["ap"] == pytest.approx(100 * expected, abs=1e-4) == figures["ap50"]


@pytest.mark.parametrize(("side", "size"), [(20, "small"), (60, "medium"), (120, "large")])
def test_objects_count_by_the_size_of_their_area(side, size):
    box = (0.0, 0.0, float(side), float(side))
    figures = average_precisions([truth(box, area=float(side * side))], [found(box)])
    sizes = {name: figures[f"ap_{name}"] for name in ("small", "medium", "large")}
    assert sizes == {name: pytest.approx(100) if name == size else None for name in sizes}


def test_it_agrees_with_another_evaluator_on_random_boxes():
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    random = np.random.default_rng(0)
    truths, guesses = [], []
    for _ in range(12):
        boxes = random.uniform((0, 0, 8, 8), 150, (6, 4))
        labels, crowd = random.integers(1, 4, 6), random.random(6) < 0.15
        truths.append(truth(*boxes.tolist(), labels=labels.tolist(), crowd=crowd.tolist(), area=900.0))
        near = boxes[:5] + random.normal(0, 6, (5, 4))
        guesses.append(found(*near.tolist(), labels=labels[:5].tolist(), scores=random.random(5).tolist()))
    rows = [
        {"image_id": i, "category_id": int(c), "bbox": b.tolist(), "area": 900.0, "iscrowd": int(k)}
        for i, t in enumerate(truths)
        for c, b, k in zip(t["labels"], t["boxes"], t["crowd"], strict=True)
    ]
    gt, dt = COCO(), COCO()
    gt.dataset = {
        "images": [{"id": i} for i in range(12)], "categories": [{"id": c} for c in (1, 2, 3)],
        "annotations": [{"id": n + 1, **row} for n, row in enumerate(rows)],
    }  # fmt: skip
    gt.createIndex()
    results = [
        {"image_id": i, "category_id": int(c), "score": float(s), "bbox": [x, y, r - x, lower - y]}
        for i, f in enumerate(guesses)
        for c, s, (x, y, r, lower) in zip(f["labels"], f["scores"], f["boxes"].tolist(), strict=True)
    ]
    dt = gt.loadRes(results)
    other = COCOeval(gt, dt, "bbox")
    other.evaluate(), other.accumulate(), other.summarize()
    expected = [100 * value if value >= 0 else None for value in other.stats[:6]]
    assert 5 < expected[0] < 95
    assert list(average_precisions(truths, guesses).values()) == pytest.approx(expected, abs=1e-6)


# --- a detector -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_loss_is_the_mean_of_each_images_own(root, batch_size):
    model = detr()
    batches = list(detection.evaluation_batches(root, model, batch_size=batch_size))
    with torch.inference_mode():
        alone = [float(model(**cut(batch, i)).loss) for batch in batches for i in range(samples_in(batch))]
    assert detection.evaluate(model, batches).loss == pytest.approx(sum(alone) / 6, rel=1e-5)


def test_the_model_is_left_as_it_was(root):
    model = detr().train()
    model.bbox_predictor.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    detection.evaluate(model, detection.evaluation_batches(root, model, limit=2))
    assert model.training and not model.bbox_predictor.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_batches_may_be_a_list_and_are_tracked(root):
    model, calls = Knowing(), []
    batches = list(detection.evaluation_batches(root, model, batch_size=4))
    evaluation = detection.evaluate(model, batches, lambda items, title, total: calls.append((title, total)) or items)
    assert calls == [("evaluation", 2)] and evaluation.ap == pytest.approx(100)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_outputs_that_are_not_finite_name_the_batch(root, bad):
    model = detr()
    model.class_labels_classifier.bias.data[1] = bad
    with pytest.raises(NumericsError, match="outputs for batch 0 are NaN or infinite; look at weights and images"):
        detection.evaluate(model, detection.evaluation_batches(root, model))


def test_nothing_to_measure_on_is_an_error(tmp_path):
    model = Knowing()
    with pytest.raises(InputError, match="There is no batch to evaluate on; give at least one image"):
        detection.evaluate(model, [])
    index = index_of()
    for row in index["annotations"]:
        row["iscrowd"] = 1
    for number, things in enumerate(([], index["annotations"])):
        root = coco_folder(tmp_path / str(number), index | {"annotations": things})
        with pytest.raises(InputError, match="The images to evaluate on hold no object; give some that do"):
            detection.evaluate(model, detection.evaluation_batches(root, model))


def test_what_must_be_installed_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = r'needs the package faster-coco-eval; install it with pip install "secateur\[detection\]"'
    with pytest.raises(InputError, match=message):
        detection.evaluate(Knowing(), [])
