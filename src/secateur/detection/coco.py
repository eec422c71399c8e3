"""Images with boxes in COCO's format: where they lie, and an index that is checked before anything is opened.

FOLDER/instances.json with FOLDER/images/                                 one set, for calibration and evaluation
FOLDER/annotations/instances_train2017.json with FOLDER/train2017/        COCO's own; also FOLDER/images/train2017/
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from ..data.opening import SPLITS
from ..errors import InputError
from ..strict_json import read_json

INDEX_LIMIT = 2 * 2**30  # bytes; COCO's own of 118,287 images takes 0.45 GiB
TOLERANCE = 1.0  # pixels by which a box may stand over, rounding included


@dataclass(frozen=True)
class Thing:
    """An object in an image; crowds are many of a kind in one box."""

    category: int
    box: tuple[float, float, float, float]  # x, y, width, height in pixels, from the upper left corner
    area: float
    is_crowd: bool


@dataclass(frozen=True)
class Picture:
    """An image, its size as seen (turned as its EXIF data say), and what is in it."""

    number: int  # COCO's id
    path: Path
    width: int
    height: int
    things: list[Thing] = field(default_factory=list)


@dataclass(frozen=True)
class CocoImages:
    """The images of one index, and the names of its categories by COCO's ids."""

    index: Path
    pictures: list[Picture]
    categories: dict[int, str]


def open_coco(root: str | Path, split: str) -> CocoImages:
    """The images of `split`, such as train, validation or val2017.

    Raises:
        InputError: no folder or index, or an index with a wrong category, image or box; image files are not looked at.
    """
    index, folder = find_index(Path(root), split)
    content = read_json(index, INDEX_LIMIT)
    rows = _rows(index, content, "images", id=int, file_name=str, width=int, height=int)
    pictures = {row["id"]: _picture(index, i, row, folder) for i, row in rows}
    categories = {row["id"]: row["name"] for _, row in _rows(index, content, "categories", id=int, name=str)}
    for kind, found in (("images", pictures), ("categories", categories)):
        if len(found) < len(content[kind]):
            raise InputError(f"{index}: two of its {kind} have the same id.")
    if not pictures:
        raise InputError(f"{index} lists no images.")
    for i, row in _rows(index, content, "annotations", image_id=int, category_id=int, bbox=list):
        if row["image_id"] not in pictures:
            raise InputError(f"{index}: annotations[{i}] is of the image {row['image_id']}, which images do not list.")
        if row["category_id"] not in categories:
            raise InputError(
                f"{index}: annotations[{i}] has the category {row['category_id']}, which categories do not list."
            )
        picture = pictures[row["image_id"]]
        picture.things.append(_thing(index, i, row, picture))
    return CocoImages(index, list(pictures.values()), categories)


def find_index(root: Path, split: str) -> tuple[Path, Path]:
    """The index of `split` and the folder of its images; InputError with what was looked for when there is none."""
    if not root.is_dir():
        raise InputError(f"There is no data folder {root}; give one in COCO's format.")
    names = next((names for names in SPLITS.values() if split in names), (split,))
    for name in names:
        for index in sorted((root / "annotations").glob(f"instances_{name}*.json")):
            own = index.stem.removeprefix("instances_")
            return index, _image_folder(index, root / own, root / "images" / own, root / "images")
    if (root / "instances.json").is_file():
        return root / "instances.json", _image_folder(root / "instances.json", root / "images")
    others = sorted(path.name for path in (root / "annotations").glob("instances_*.json"))
    raise InputError(
        f"{root} has no COCO index of {split!r}: there is no instances.json, and annotations/ holds"
        f" {', '.join(others) or 'nothing'} where instances_{names[0]}*.json was looked for."
    )


def _image_folder(index: Path, *folders: Path) -> Path:
    for folder in folders:
        if folder.is_dir():
            return folder
    raise InputError(f"The images of {index} are not there: no folder {' or '.join(map(str, folders))}.")


def _rows(index: Path, content: Mapping[str, Any], kind: str, **types: type) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(position, row) of a list of the index, whose rows have fields of these types."""
    rows = content.get(kind)
    if not isinstance(rows, list):
        raise InputError(f"{index} has no list of {kind}, as COCO's format wants.")
    for i, row in enumerate(rows):
        for name, wanted in types.items():
            if not isinstance(row, dict) or type(row.get(name)) is not wanted:
                raise InputError(f"{index}: {kind}[{i}] has no {name} of type {wanted.__name__}.")
        yield i, row


def _picture(index: Path, i: int, row: Mapping[str, Any], folder: Path) -> Picture:
    if min(row["width"], row["height"]) < 1:
        raise InputError(f"{index}: images[{i}] has {row['width']}×{row['height']} pixels.")
    inside = PurePosixPath(row["file_name"])
    if inside.is_absolute() or ".." in inside.parts:
        raise InputError(f"{index}: images[{i}] is the file {row['file_name']!r:.80}, which leaves the folder.")
    return Picture(row["id"], folder / inside, row["width"], row["height"])


def _thing(index: Path, i: int, row: Mapping[str, Any], picture: Picture) -> Thing:
    def refuse(why: str) -> NoReturn:
        raise InputError(
            f"{index}: the box {row['bbox']!r:.80} of annotations[{i}] {why}; a box is x, y, width and height in pixels"
            f" within the {picture.width}×{picture.height} of {picture.path.name}."
        )

    if len(row["bbox"]) != 4 or not all(_is_number(value) for value in row["bbox"]):
        refuse("is not four numbers")
    x, y, width, height = (float(value) for value in row["bbox"])
    if width < 0 or height < 0:
        refuse("has a negative side")
    if min(x, y, picture.width - x - width, picture.height - y - height) < -TOLERANCE:
        refuse("stands over the image")
    area = row.get("area", width * height)
    if not _is_number(area) or area < 0:
        raise InputError(f"{index}: annotations[{i}] has the area {area!r:.40}; it must be a number from 0.")
    return Thing(row["category_id"], (x, y, width, height), float(area), bool(row.get("iscrowd", 0)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
