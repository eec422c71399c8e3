"""Reports are made from result files, never from a live model."""

from .figure import save_curve
from .page import read_results, write_report
from .results import gather, value_text

__all__ = ["gather", "read_results", "save_curve", "value_text", "write_report"]
