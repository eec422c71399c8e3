"""Images by name, prepared as a model wants them, in batches that are the same on every pass."""

from .batches import Batches
from .choice import calibration_batches, evaluation_batches
from .source import DataSource

__all__ = ["Batches", "DataSource", "calibration_batches", "evaluation_batches"]
