"""This package's runtime against others, side by side in one run, each in a process of its own."""

from .comparison import compare_runtimes
from .machine import describe_machine
from .models import Candidate, random_candidates, saved_candidates
from .runtimes import Runtime, choose
from .turns import Plan

__all__ = [
    "Candidate", "Plan", "Runtime", "choose", "compare_runtimes", "describe_machine", "random_candidates",
    "saved_candidates",
]  # fmt: skip
