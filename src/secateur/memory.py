"""How much memory there is, and the sentence for when it is not enough."""

import os
from pathlib import Path


def available_bytes() -> int:
    """What could be used now without swapping: the kernel's estimate, within the limits of the control group."""
    free = _free_bytes()
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        files = _entry(Path("/sys/fs/cgroup/memory.stat"), "inactive_file")  # cached, given up when memory runs short
    except (OSError, ValueError, StopIteration):  # no control group, or no limit
        return free
    return max(0, min(free, limit - used + files))


def _free_bytes() -> int:
    try:
        return 1024 * _entry(Path("/proc/meminfo"), "MemAvailable:")
    except (OSError, StopIteration):  # not Linux: half of what is built in
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _entry(path: Path, name: str) -> int:
    lines = (line.split() for line in path.read_text().splitlines())
    return next(int(words[1]) for words in lines if words and words[0] == name)


def readable(count: float) -> str:
    """1536 → "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
