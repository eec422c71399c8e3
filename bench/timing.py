"""Times that can be trusted on a noisy machine: rivals take turns inside one run, and medians of ratios are kept."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import timm
import torch

from secateur import __version__, native
from secateur.cli.doctor import processor


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(rivals: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """{name: seconds of each round}; every round runs each rival once, after one round that does not count."""
    for work in rivals.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, work in rivals.items():
            times[name].append(seconds(work))
    return times


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """The median over rounds of slow / fast."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """p of time ~ size^p, by least squares over logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def machine() -> dict:
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "kernels": native.describe()["isa"],
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "secateur": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
    }
