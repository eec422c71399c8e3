"""Amounts of memory and of time, as people write and read them; memory counts in powers of 1024."""

import re

from .errors import InputError

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(text: int | str) -> int:
    """ "12GiB" → 12884901888; K, M, G and T count in powers of 1024, with or without iB or B."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?)(?:i?B)?\s*", str(text), re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise InputError(f"{text!r} is no amount of memory; give such as 12GiB or 800M.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def readable(size: float) -> str:
    """1536 → "1.5 KiB"."""
    if size < 1024:
        return f"{size:.0f} bytes"
    unit = next((u for u in "KMG" if size < 1024 * UNITS[u]), "T")
    return f"{size / UNITS[unit]:.1f} {unit}iB"


def duration(seconds: float) -> str:
    """75 → "75 s", 3000 → "50 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
