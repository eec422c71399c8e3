"""How an image processor of transformers treats images, in the words of timm's transforms."""

import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from .errors import InputError
from .hf_models import is_transformers
from .modes import evaluating

CONVNEXT_SQUASHES = 384  # from this side on its processor does not crop
Size = tuple[int, int]  # height, width


def image_shape(model: nn.Module) -> tuple[int, int, int] | None:
    """(channels, height, width) that a model of transformers was made for; None where it does not say."""
    if not is_transformers(model):
        return None
    processor, config = getattr(model, "image_processor", None), model.config
    size = _size(processor)[0] if processor is not None else None
    size = size or _pair(getattr(config, "image_size", None))
    return None if size is None else (int(getattr(config, "num_channels", 3)), *size)


def check_shape(model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Raise InputError when a model of transformers refuses images of this shape, which only running it can tell."""
    if not is_transformers(model) or shape == image_shape(model):
        return
    first = next(model.parameters())
    try:
        with evaluating(model), torch.inference_mode():
            model(torch.zeros(1, *shape, dtype=first.dtype, device=first.device))
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise InputError(
            f"The model does not take images of {shape[1]}×{shape[2]} ({reason[:150]}); leave the size out."
        ) from None


def data_settings(model: nn.Module) -> dict[str, Any]:
    """mean, std, interpolation, crop_pct and crop_mode, as far as the model's image processor says; else nothing.

    Raises:
        InputError: when it does what timm's transforms cannot.
    """
    processor = getattr(model, "image_processor", None) if is_transformers(model) else None
    if processor is None:
        return {}
    if getattr(processor, "do_flip_channel_order", False):
        raise InputError(
            f"The {type(processor).__name__} of this model swaps red and blue, which the transforms here do not; in"
            " Python, give batches of your own."
        )
    settings: dict[str, Any] = {}
    if processor.resample is not None:
        settings["interpolation"] = Image.Resampling(int(processor.resample)).name.lower()
    mean, std = (processor.image_mean, processor.image_std) if processor.do_normalize else (0.0, 1.0)
    scale = 255 * processor.rescale_factor if processor.do_rescale else 255.0  # timm's images go from 0 to 1
    if mean is not None and std is not None:
        channels = int(getattr(model.config, "num_channels", 3))
        settings["mean"] = tuple(np.broadcast_to(np.asarray(mean) / scale, channels).tolist())
        settings["std"] = tuple(np.broadcast_to(np.asarray(std) / scale, channels).tolist())
    _, settings["crop_pct"], settings["crop_mode"] = _size(processor)
    return settings


def _size(processor: Any) -> tuple[Size | None, float, str]:
    """The size of an image made ready, how much of the resized image that is, and timm's word for the resizing."""
    size, crop = _plain(processor.size), _plain(getattr(processor, "crop_size", None))
    if getattr(processor, "crop_pct", None) is not None and "shortest_edge" in size:  # ConvNeXt's
        side = size["shortest_edge"]
        return (side, side), *((1.0, "squash") if side >= CONVNEXT_SQUASHES else (processor.crop_pct, "center"))
    mode = "center" if "shortest_edge" in size else "squash"
    resized = _pair(size.get("shortest_edge")) or _pair((size.get("height"), size.get("width")))
    if not getattr(processor, "do_center_crop", False) or not crop or resized is None:
        return resized, 1.0, mode
    cropped = _pair((crop.get("height"), crop.get("width"))) or resized
    return cropped, math.nextafter(cropped[0] / resized[0], 0), mode  # timm rounds down what it divides by this


def _plain(size: Any) -> dict[str, int]:
    """{what: pixels} of transformers' dictionary of sizes, which lists those it has not as None."""
    found = dict(size or {})
    return {name: int(pixels) for name, pixels in found.items() if pixels is not None}


def _pair(size: Any) -> Size | None:
    values = tuple(size) if isinstance(size, list | tuple) else (size, size)
    return None if None in values or len(values) != 2 else (int(values[0]), int(values[1]))
