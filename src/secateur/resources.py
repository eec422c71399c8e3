"""What making the Fisher may take: how much memory, where what does not fit waits, and how precise the passes are."""

from dataclasses import dataclass
from pathlib import Path

import torch

from . import native
from .errors import InputError
from .units import parse_bytes

PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class Resources:
    """The means of one collection.

    Args:
        memory: bytes, or such as "12GiB", that the process may hold in all; None means 60 % of what is free.
        spill: folder for the Fishers that wait while others are made; None means the system's temporary folder.
        precision: of the forward and backward passes; "auto" takes bfloat16 where the processor multiplies in it.

    >>> Resources(memory="12GiB").bytes
    12884901888
    """

    memory: int | str | None = None
    spill: str | Path | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InputError(f"There is no precision {self.precision!r}; choose {', '.join(PRECISIONS)}.")
        if self.spill is not None and not Path(self.spill).is_dir():
            raise InputError(f"There is no folder {self.spill} to spill to; make it, or name another one.")
        _ = self.bytes  # raises

    @property
    def bytes(self) -> int | None:
        """`memory` as a number."""
        return None if self.memory is None else parse_bytes(self.memory)

    def autocast(self, device: torch.device) -> torch.autocast:
        """The context of a forward pass."""
        wanted = self.precision == "bfloat16" or (self.precision == "auto" and _gains(device))
        return torch.autocast(device.type, torch.bfloat16, enabled=wanted)


DEFAULT = Resources()


def _gains(device: torch.device) -> bool:
    """Whether products are faster in bfloat16 there."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and native.describe()["isa"] == "avx512bf16"
