"""What a detector should find in an image: COCO's categories and boxes in the model's labels and coordinates."""

from typing import Any

import torch
from torch import nn

from ..errors import InputError
from ..models import class_count
from .coco import CocoImages, Picture

Target = dict[str, Any]


def label_numbers(images: CocoImages, model: nn.Module) -> dict[int, int]:
    """{COCO's category id: the model's label}: by name where the model's labels have these names, else by number.

    Raises:
        InputError: when a category that occurs is none of the labels.
    """
    used = {thing.category for picture in images.pictures for thing in picture.things}
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    labels = {str(name).strip().lower(): int(label) for label, name in names.items()}
    named = {category: labels.get(name.strip().lower()) for category, name in images.categories.items()}
    known = {category: label for category, label in named.items() if label is not None}
    if used <= set(known):
        return known
    unknown = min(used - set(known))
    if any(category != label for category, label in known.items()):  # so numbers mean something else
        raise InputError(
            f"{images.index}: the category {images.categories[unknown]!r} is none of the model's labels, though others"
            " are; give the categories the names in the model's config.json."
        )
    classes = class_count(model)
    for category in sorted(used):
        if category < 0 or (classes is not None and category >= classes):
            raise InputError(
                f"{images.index}: the category {category} ({images.categories[category]}) is none of the model's"
                f" {classes} labels; number the categories as the model does, or give them its names."
            )
    return {category: category for category in images.categories}


def target_of(picture: Picture, labels: dict[int, int]) -> Target:
    """For the loss, boxes as (centre, width, height) in fractions of the image; and "truth", what an evaluator compares
    with, as COCO has it: boxes as (x, y, width, height) in pixels, crowds among them.
    """
    size = torch.tensor([picture.width, picture.height], dtype=torch.float64)
    boxes = torch.tensor([thing.box for thing in picture.things], dtype=torch.float64).reshape(-1, 4)
    first = boxes[:, :2].clamp(min=0)
    sides = torch.minimum(boxes[:, :2] + boxes[:, 2:], size) - first  # (things, 2)
    fractions = torch.cat([(first + sides / 2) / size, sides / size], dim=1).float()  # (things, 4)
    classes = torch.tensor([labels[thing.category] for thing in picture.things], dtype=torch.long)
    crowd = torch.tensor([thing.is_crowd for thing in picture.things], dtype=torch.bool)
    areas = torch.tensor([thing.area for thing in picture.things], dtype=torch.float64)
    learned = ~crowd & (sides > 0).all(1)
    return {
        "class_labels": classes[learned],
        "boxes": fractions[learned],
        "orig_size": torch.tensor([picture.height, picture.width]),
        "truth": {"labels": classes, "boxes": boxes, "areas": areas, "crowd": crowd},
    }
