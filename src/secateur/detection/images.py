"""One image made ready by the model's own image processor, and that processor's way of reading the model's outputs."""

from typing import Any

from PIL import ExifTags, Image, ImageOps
from torch import Tensor, nn

from ..data.prepare import Problem, unreadable
from ..errors import InputError, check_whole
from ..hf_models import is_transformers
from .coco import Picture

LIES_ON_ITS_SIDE = (5, 6, 7, 8)  # values of EXIF's orientation


def image_processor(model: nn.Module) -> Any:
    """The one the model was loaded with, or the default one of its architecture."""
    processor = getattr(model, "image_processor", None)
    if processor is None and is_transformers(model):
        from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

        kinds: Any = IMAGE_PROCESSOR_MAPPING
        named = kinds.get(type(model.config), None) or {}  # {"torchvision": class, "pil": class}
        processor = named["torchvision"]() if "torchvision" in named else None
    if not hasattr(processor, "post_process_object_detection"):
        raise InputError(
            f"The {type(model).__name__} has no image processor that finds objects; give the model an"
            " `image_processor` such as transformers' DetrImageProcessor()."
        )
    return processor


def sizes_of(processor: Any, side: int | None) -> dict[str, int]:
    """To what it brings images: as it says, or in the same proportions with `side` as the shorter side."""
    sizes = {name: int(pixels) for name, pixels in dict(processor.size).items() if pixels is not None}
    if side is None:
        return sizes
    check_whole(image_size=side)
    return {name: round(pixels * side / min(sizes.values())) for name, pixels in sizes.items()}


def ready_image(picture: Picture, processor: Any, sizes: dict[str, int]) -> Tensor | Problem:
    """(3, height, width), without the processor's padding; turned upright as its EXIF data say."""
    try:
        with Image.open(picture.path) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # decoders fail in many ways
        return unreadable(str(picture.path), error)
    if (problem := _wrong_size(picture, upright.size)) is not None:
        return problem
    return processor(images=[upright], size=sizes, do_pad=False, return_tensors="pt")["pixel_values"][0]


def header_problem(picture: Picture) -> Problem | None:
    """What the file's header says against it; the image is not decoded."""
    try:
        with Image.open(picture.path) as image:
            turned = image.getexif().get(ExifTags.Base.Orientation) in LIES_ON_ITS_SIDE
            size = image.size[::-1] if turned else image.size
    except Exception as error:  # decoders fail in many ways
        return unreadable(str(picture.path), error)
    return _wrong_size(picture, size)


def _wrong_size(picture: Picture, size: tuple[int, int]) -> Problem | None:
    if size == (picture.width, picture.height):
        return None
    reason = f"has {size[0]}×{size[1]} pixels, but its index says {picture.width}×{picture.height}"
    return Problem(str(picture.path), reason, is_skippable=False)
