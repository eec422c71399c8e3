"""Detectors: images with boxes in COCO's format, and the average precision of what a model finds in them."""

from .batches import DetectionBatches, calibration_batches, evaluation_batches
from .evaluation import DetectionEvaluation, evaluate
from .precision import average_precisions

__all__ = [
    "DetectionBatches",
    "DetectionEvaluation",
    "average_precisions",
    "calibration_batches",
    "evaluate",
    "evaluation_batches",
]
