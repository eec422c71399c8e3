"""Training sparse models: masks that hold through every step, and the methods that change them on the way."""

from .keeper import MaskKeeper

__all__ = ["MaskKeeper"]
