"""Which layers' Fishers are made together, so that a given memory is never exceeded.

Layers are taken in groups that run through the model, one pass over the same batches each: a pass that needs only late
layers ends its backward pass early. Where there is more than one group, what a pass has made waits on the disk.
"""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError
from .units import duration, readable


@dataclass(frozen=True)
class MemoryPlan:
    """The groups of layers, one pass each, and what they take."""

    groups: list[list[str]]
    needed: int  # bytes of all Fishers
    base: int  # bytes the process holds at the most without them
    budget: int
    folder: Path | None  # where they wait, if there are several groups

    @property
    def passes(self) -> int:
        return len(self.groups)

    def describe(self, batches: int | None, seconds: float) -> str:
        """One sentence; `seconds` is what one batch takes."""
        room = readable(self.budget - self.base)
        text = f"Fisher: {readable(self.needed)} with {room} free for it"
        text += f", so {self.passes} passes, waiting in {self.folder}" if self.folder else ", so one pass"
        if batches is not None:
            text += f"; about {duration(seconds * batches * self.passes)}"
        return text + "."


def make_plan(
    needs: Mapping[str, int], base: int, budget: int, spill: str | Path | None = None, smaller: str = "a smaller block"
) -> MemoryPlan:
    """The fewest groups of neighbouring layers that each fit into what `base` leaves of `budget`.

    Args:
        needs: layer → bytes of its Fisher, in the model's order.
        base: bytes that the process holds at the most while it makes gradients.
        smaller: what would make the needs smaller.
    Raises:
        InputError: when a layer fits into no group, or the disk cannot take what has to wait.
    """
    room, total = budget - base, sum(needs.values())
    largest = max(needs, key=lambda name: needs[name])
    if needs[largest] > room:
        raise InputError(
            f"The Fisher of {largest} takes {readable(needs[largest])}, and of {readable(budget)} of memory the"
            f" model and a batch leave {readable(max(room, 0))}; allow {readable(base + needs[largest])} of memory, or"
            f" try smaller batches or {smaller}."
        )
    groups: list[list[str]] = [[]]
    filled = 0
    for name, count in needs.items():
        if filled + count > room:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += count
    folder = None
    if len(groups) > 1:
        folder = Path(spill if spill is not None else tempfile.gettempdir())
        _check_disk(folder, total, base, smaller)
    return MemoryPlan(groups, total, base, budget, folder)


def _check_disk(folder: Path, needed: int, base: int, smaller: str) -> None:
    in_memory = _is_memory(folder)
    free = 0 if in_memory else shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"The Fishers take {readable(needed)} and have to wait on the disk, but {folder}"
            f" {'lies in memory' if in_memory else f'has {readable(free)} free'}; name a folder with more room to spill"
            f" to, allow {readable(base + needed)} of memory, or try {smaller}."
        )


def _is_memory(folder: Path) -> bool:
    """Whether the folder lies in a file system that is itself memory, where Linux tells."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    here = folder.resolve()
    above = [m for m in mounts if here.is_relative_to(m[1])]
    return bool(above) and max(above, key=lambda m: len(m[1]))[2] in ("tmpfs", "ramfs")
