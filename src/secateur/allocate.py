"""How many weights leave which layer, and which: exact counts, whatever the ties.

A group of layers shares one count of zeros and one threshold. Global pruning is one group of all layers, uniform
pruning a group for each, a table likewise, each with its own. A pattern bounds what may leave: its scores are ∞ where a
weight must stay, so that any count up to the last leaves the pattern whole.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .errors import InputError, NumericsError
from .layers import PrunableWeight, matching_names
from .patterns import NM, bounded, why_not, zeros_within
from .sparsity import Share, Wanted

ALLOCATIONS = ("global", "uniform")


@dataclass(frozen=True)
class Group:
    """Layers that share one threshold, and how many zeros they hold together."""

    names: tuple[str, ...]
    zeros: int
    pattern: NM | None = None  # in which each of them ends
    reason: str = ""  # why its layer stays as it is, though it was asked for a pattern


def groups_for(
    weights: Mapping[str, PrunableWeight], keep: Mapping[str, Tensor], wanted: Wanted, allocation: str = "global"
) -> list[Group]:
    """The groups that reach what is wanted: round(fraction · size) zeros each, or as many as the pattern has.

    Args:
        keep: matrices, False where weights have left before.
        wanted: in a table the first pattern of names that matches a layer counts; a layer that none matches gets no
            zeros.
        allocation: "global" or "uniform"; a table is its own allocation.
    Raises:
        InputError: when there is no such allocation or layer, or no layer that can take an N:M pattern.
    """
    if allocation not in ALLOCATIONS and not isinstance(wanted, dict):
        raise InputError(f"There is no allocation {allocation!r}; choose {' or '.join(ALLOCATIONS)}, or give a table.")
    shares = _shares(weights, wanted)
    reasons = _reasons(weights, shares)
    able = tuple(name for name in weights if name not in reasons)
    together = [able] if allocation == "global" and not isinstance(wanted, dict) else [(name,) for name in able]
    groups = [Group(names, *_goal(shares[names[0]], [keep[n] for n in names])) for names in together]
    return groups + [Group((name,), int((~keep[name]).sum()), reason=reason) for name, reason in reasons.items()]


def patterns_of(groups: Iterable[Group]) -> dict[str, NM]:
    """{layer: the pattern in which it ends}, for those that end in one."""
    return {name: group.pattern for group in groups for name in group.names if group.pattern}


def left_out(groups: Iterable[Group]) -> dict[str, str]:
    """{layer: why it stays as it is}, for those that cannot take the pattern they were asked for."""
    return {name: group.reason for group in groups for name in group.names if group.reason}


def allocation_name(wanted: Wanted, allocation: str) -> str:
    """What a result calls it: a table is its own allocation."""
    return "table" if isinstance(wanted, dict) else allocation


def _shares(names: Iterable[str], wanted: Wanted) -> dict[str, Share]:
    """What each layer is asked for."""
    names = list(names)
    if not isinstance(wanted, dict):
        return dict.fromkeys(names, wanted)
    rows = {pattern: matching_names(names, pattern) for pattern in wanted}
    return {name: next((wanted[p] for p, matches in rows.items() if name in matches), 0.0) for name in names}


def _reasons(weights: Mapping[str, PrunableWeight], shares: Mapping[str, Share]) -> dict[str, str]:
    """{layer: why it cannot take the pattern it is asked for}."""
    reasons: dict[str, str] = {}
    for pattern in dict.fromkeys(share for share in shares.values() if isinstance(share, NM)):
        asked = [name for name, share in shares.items() if share == pattern]
        unable = {name: reason for name in asked if (reason := why_not(pattern, weights[name].channels))}
        if len(unable) == len(asked):
            raise InputError(
                f"No layer can take the pattern {pattern}. {asked[0]} cannot because {unable[asked[0]]}"
                f"{f', and so with {len(asked) - 1} more' * (len(asked) > 1)}; choose other layers or another pattern."
            )
        reasons |= unable
    return reasons


def _goal(share: Share, keep: Sequence[Tensor]) -> tuple[int, NM | None]:
    """How many zeros the layers end with, and in which pattern."""
    if isinstance(share, NM):
        return sum(zeros_within(mask, share) for mask in keep), share
    return round(share * sum(mask.numel() for mask in keep)), None


def staged(groups: Sequence[Group], masks: Mapping[str, Tensor], steps: int) -> list[list[Group]]:
    """The way to `groups` in `steps`: each takes the same fraction of the weights that are left."""
    stages = []
    for step in range(1, steps + 1):
        stage = []
        for group in groups:
            total = sum(masks[n].numel() for n in group.names)
            kept = sum(int(masks[n].sum()) for n in group.names)
            goal = total - group.zeros
            shrink = goal / kept if kept else 1.0
            left = kept * shrink ** (step / steps) if goal else kept * (1 - step / steps)
            stage.append(group if step == steps else replace(group, zeros=round(total - left)))
        stages.append(stage)
    return stages


def allocate(scores: Mapping[str, Tensor], groups: Sequence[Group]) -> dict[str, Tensor]:
    """Masks, True where kept: in each group exactly `zeros` weights leave, the smallest scores first.

    Ties leave in the order of the layers and of the weights in them. A score of −inf marks a weight that has left.
    Args:
        scores: matrices (out, in).
    Raises:
        InputError: when more weights have left already than the group is to lose.
        NumericsError: when a score is NaN.
    """
    masks = {}
    for group in groups:
        for name in group.names:
            if torch.isnan(scores[name]).any():
                raise NumericsError(f"A score of {name} is NaN; its weights or its Fisher are not finite.")
        own = [bounded(scores[n], group.pattern) if group.pattern else scores[n] for n in group.names]
        together = torch.cat([part.reshape(-1) for part in own])
        gone = int(torch.isneginf(together).sum())
        if gone > group.zeros:
            enough = math.ceil(1e4 * gone / together.numel()) / 1e4
            raise InputError(
                f"{_holders(group.names)} {gone} zeros of {together.numel()} already, more than the {group.zeros} asked"
                f" for; ask for a sparsity of at least {enough:g}{', or use global allocation' * (len(groups) > 1)}."
            )
        kept = ~smallest(together, group.zeros)
        for name, part in zip(group.names, kept.split([scores[n].numel() for n in group.names]), strict=True):
            masks[name] = part.view(scores[name].shape)
    return {name: masks[name] for name in scores}


def smallest(values: Tensor, count: int) -> Tensor:
    """True at exactly `count` of the smallest values, the first ones where they tie."""
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    threshold = values.kthvalue(count).values
    chosen = values < threshold
    ties = (values == threshold).nonzero()[: count - int(chosen.sum()), 0]
    chosen[ties] = True
    return chosen


def _holders(names: Sequence[str]) -> str:
    return f"The layer {names[0]} holds" if len(names) == 1 else f"The {len(names)} layers hold"
