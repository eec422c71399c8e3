"""Reports are made from result files, never from a live model."""

from .figure import save_curve
from .page import read_results, write_report
from .results import gather, value_text
from .speeds import save_speeds

__all__ = ["gather", "read_results", "save_curve", "save_speeds", "value_text", "write_report"]
