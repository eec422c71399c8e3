"""How much memory there is and how much this process holds, of the processor's or of an accelerator's."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

CPU = torch.device("cpu")


def available_bytes(device: torch.device = CPU) -> int:
    """What could be used now without swapping: the kernel's estimate, within the limits of the control group."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = _free_bytes()
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        files = _entry(Path("/sys/fs/cgroup/memory.stat"), "inactive_file")  # cached, given up when memory runs short
    except (OSError, ValueError, StopIteration):  # no control group, or no limit
        return free
    return max(0, min(free, limit - used + files))


def held_bytes(device: torch.device = CPU) -> int:
    """What this process holds now."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    return _status("VmRSS:") or _largest_ever()


def most_held_bytes(device: torch.device = CPU) -> int:
    """The most this process has held since `forget_most_held`; where that cannot be told, since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return _status("VmHWM:") or _largest_ever()


def forget_most_held(device: torch.device = CPU) -> None:
    """Let `most_held_bytes` begin anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):  # Linux only, and not in every container
        Path("/proc/self/clear_refs").write_text("5")


def _free_bytes() -> int:
    try:
        return 1024 * _entry(Path("/proc/meminfo"), "MemAvailable:")
    except (OSError, StopIteration):  # not Linux: half of what is built in
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _entry(path: Path, name: str) -> int:
    lines = (line.split() for line in path.read_text().splitlines())
    return next(int(words[1]) for words in lines if words and words[0] == name)


def _status(field: str) -> int | None:
    with suppress(OSError, StopIteration):
        return 1024 * _entry(Path("/proc/self/status"), field)
    return None


def _largest_ever() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
