"""Average precision of boxes, as COCO measures it: the mean over ten overlaps from 0.50 to 0.95 and all categories that
occur. A COCO evaluator, faster-coco-eval, matches what a model found with the truth.
"""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from ..errors import InputError

Boxes = Mapping[str, Tensor]  # of one image
FIGURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")  # in the evaluator's order; recalls come after


def average_precisions(truths: Sequence[Boxes], found: Sequence[Boxes]) -> dict[str, float | None]:
    """The FIGURES in per cent; None where there is no object of that size.

    Args:
        truths: for each image "labels", "boxes" (x, y, width, height in pixels), "areas" and "crowd" of its objects.
        found: for each image "labels", "boxes" (corners in pixels) and "scores" of the model's.
    Raises:
        InputError: when no image holds an object.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    objects = [
        {"image_id": image, "category_id": label, "bbox": box, "area": area, "iscrowd": int(crowd)}
        for image, truth in enumerate(truths)
        for label, box, area, crowd in _rows(truth, "labels", "boxes", "areas", "crowd")
    ]
    if all(row["iscrowd"] for row in objects):
        raise InputError("The images to evaluate on hold no object; give some that do.")
    labels = sorted({row["category_id"] for row in objects})  # others count for nothing
    guesses = [
        {"image_id": image, "category_id": label, "bbox": [x, y, right - x, lower - y], "score": score,
         "area": (right - x) * (lower - y), "iscrowd": 0}
        for image, boxes in enumerate(found)
        for label, (x, y, right, lower), score in _rows(boxes, "labels", "boxes", "scores")
        if label in labels
    ]  # fmt: skip
    indices = []
    for rows in (objects, guesses):
        index = {
            "images": [{"id": image} for image in range(len(truths))],
            "categories": [{"id": label, "name": str(label)} for label in labels],
            "annotations": [{"id": number, **row} for number, row in enumerate(rows, 1)],
        }
        indices.append(COCO(index))
    evaluator = COCOeval_faster(*indices, iouType="bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    values = zip(FIGURES, evaluator.stats.tolist(), strict=False)
    return {name: 100 * value if value >= 0 else None for name, value in values}


def _rows(boxes: Boxes, *names: str) -> Iterator[tuple]:
    """The entries of these tensors side by side, as plain numbers and lists."""
    return zip(*(boxes[name].tolist() for name in names), strict=True)
