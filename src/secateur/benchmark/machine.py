"""The machine that figures come from."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

from .. import native
from ..memory import available_bytes

FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve")


def describe_machine(threads: int) -> dict[str, Any]:
    """Processor, cores, what it can, memory, and how busy it was with other work."""
    cpu = _cpu()
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    return {
        "processor": cpu.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "features": [name for name in FEATURES if name in flags],
        "kernels": native.describe()["isa"],
        "cache": cpu.get("cache size"),
        "free_bytes": available_bytes(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu() -> dict[str, str]:
    """The fields of the first processor."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:  # not Linux
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
