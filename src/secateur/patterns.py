"""N:M patterns: of every M neighbours at most N are not zero (appendix "Semi-structured sparsity" of the CAP paper).

Neighbours are M consecutive input channels of one output and, in a convolution, of one place of its kernel: the last
axis of a weight's matrix (out, in). A layer takes a pattern where its input channels are whole groups.
Cost: one sort of each group.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import InputError

UNSTRUCTURED = "unstructured"


@dataclass(frozen=True)
class NM:
    """At most `keep` of every `of` neighbours are not zero.

    >>> str(NM(2, 4)), NM(2, 4).sparsity
    ('2:4', 0.5)
    """

    keep: int  # N
    of: int  # M

    def __post_init__(self) -> None:
        assert 0 < self.keep < self.of, self

    def __str__(self) -> str:
        return f"{self.keep}:{self.of}"

    @property
    def leave(self) -> int:
        """How many of a whole group leave."""
        return self.of - self.keep

    @property
    def sparsity(self) -> float:
        """The fraction of zeros of a layer in this pattern."""
        return self.leave / self.of


def read_pattern(text: str, where: str = "") -> NM:
    """The pattern that a text such as "2:4" names.

    Raises:
        InputError: when it names none; `where` says where it stood.
    """
    found = re.fullmatch(r"\s*([0-9]{1,9}):([0-9]{1,9})\s*", text)
    if not found:
        raise InputError(f"{text!r:.40}{where} is no pattern N:M of two whole numbers; try 2:4.")
    keep, of = int(found[1]), int(found[2])
    if 0 < keep < of:
        return NM(keep, of)
    if 0 < of < keep:
        hint = f"did you mean {of}:{keep}?"
    else:
        hint = "for no zeros at all ask for 0." if keep else "for nothing but zeros ask for 1."
    raise InputError(f"The pattern {keep}:{of}{where} must keep at least one of a group and not all of it; {hint}")


def why_not(pattern: NM, channels: int) -> str:
    """Why a layer of so many input channels cannot take the pattern; empty where it can."""
    return f"its {channels} input channels are no multiple of {pattern.of}" if channels % pattern.of else ""


def kept_by_group(kept: Tensor, pattern: NM) -> Tensor:
    """(out, …, groups): how many each group keeps, of a mask in its weight's own shape (out, in, …) or as a matrix."""
    last = kept.movedim(1, -1)
    return last.unflatten(-1, (last.shape[-1] // pattern.of, pattern.of)).sum(-1)


def zeros_within(keep: Tensor, pattern: NM) -> int:
    """How many zeros a layer ends with: M − N in every group, and those already there where they are more."""
    gone = pattern.of - kept_by_group(keep, pattern)
    return int(gone.clamp(min=pattern.leave).sum())


def bounded(scores: Tensor, pattern: NM) -> Tensor:
    """Scores (out, in) with ∞ for the N best of every group: taking the smallest never breaks the pattern then.

    Of equal scores the last stay. What has left keeps its −∞, and NaN remains to be found.

    >>> bounded(torch.tensor([[3.0, 1.0, 2.0, 4.0]]), NM(1, 4))
    tensor([[3., 1., 2., inf]])
    """
    groups = scores.clamp(max=torch.finfo(scores.dtype).max).unflatten(1, (-1, pattern.of))  # (out, groups, M)
    best = groups.argsort(dim=2, stable=True)[:, :, pattern.leave :]
    return torch.where(scores > -torch.inf, groups.scatter(2, best, torch.inf).flatten(1), scores)


def place_of(group: Tensor, pattern: NM) -> str:
    """Where a group of `kept_by_group` stands in its weight, as one indexes it."""
    out, *kernel, number = group.tolist()
    return str([out, f"{number * pattern.of}:{(number + 1) * pattern.of}", *kernel]).replace("'", "")


def summary(layers: Iterable[Mapping[str, Any]]) -> str:
    """The patterns of layers, each with its "pattern" and its "zeros"; a layer without zeros has none to name."""
    found = dict.fromkeys(row["pattern"] for row in layers if row["zeros"] or row["pattern"] != UNSTRUCTURED)
    return ", ".join(found) or UNSTRUCTURED
