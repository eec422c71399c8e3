"""Reports are made from result files, never from a live model."""

from .figure import save_curve
from .page import read_results, write_report

__all__ = ["read_results", "save_curve", "write_report"]
