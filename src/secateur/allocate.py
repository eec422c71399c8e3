"""How many weights leave which layer, and which: exact counts, whatever the ties.

A group of layers shares one count of zeros and one threshold. Global pruning is one group of all layers, uniform
pruning a group for each, a table of sparsities likewise, each with its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import InputError, NumericsError
from .layers import matching_names

ALLOCATIONS = ("global", "uniform")
Sparsity = float | Mapping[str, float]  # the fraction of zeros, or a table {layer pattern: fraction}


@dataclass(frozen=True)
class Group:
    """Layers that share one threshold, and how many zeros they hold together."""

    names: tuple[str, ...]
    zeros: int


def groups_for(sizes: Mapping[str, int], sparsity: Sparsity, allocation: str = "global") -> list[Group]:
    """The groups that reach `sparsity`: round(sparsity · size) zeros each.

    Args:
        sparsity: the fraction of zeros, or a table {layer pattern: fraction} in which the first pattern that matches
            a layer counts; a layer that none matches gets no zeros.
        allocation: "global" or "uniform"; a table is its own allocation.
    """
    if isinstance(sparsity, Mapping):
        return _groups_of_table(sizes, sparsity)
    check_sparsity(sparsity)
    if allocation not in ALLOCATIONS:
        raise InputError(f"There is no allocation {allocation!r}; choose {' or '.join(ALLOCATIONS)}, or give a table.")
    if allocation == "uniform":
        return [Group((name,), round(sparsity * size)) for name, size in sizes.items()]
    return [Group(tuple(sizes), round(sparsity * sum(sizes.values())))]


def allocation_name(sparsity: Sparsity, allocation: str) -> str:
    """What a result calls it: a table is its own allocation."""
    return "table" if isinstance(sparsity, Mapping) else allocation


def check_sparsity(sparsity: float, where: str = "") -> None:
    """Raise InputError unless it is a number from 0 to 1."""
    if isinstance(sparsity, bool) or not isinstance(sparsity, int | float) or not 0 <= sparsity <= 1:
        hint = (
            f"; did you mean {sparsity / 100:g}?" if isinstance(sparsity, int | float) and 1 < sparsity <= 100 else ""
        )
        raise InputError(f"The sparsity {sparsity!r}{where} is no fraction from 0 to 1{hint or '.'}")


def _groups_of_table(sizes: Mapping[str, int], table: Mapping[str, float]) -> list[Group]:
    rows = {pattern: matching_names(sizes, pattern) for pattern in table}
    for pattern, sparsity in table.items():
        check_sparsity(sparsity, f" of {pattern!r}")
    first = {name: next((p for p, names in rows.items() if name in names), None) for name in sizes}
    return [Group((n,), round(table[p] * sizes[n]) if p is not None else 0) for n, p in first.items()]


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
            stage.append(Group(group.names, group.zeros if step == steps else round(total - left)))
        stages.append(stage)
    return stages


def allocate(scores: Mapping[str, Tensor], groups: Sequence[Group]) -> dict[str, Tensor]:
    """Masks, True where kept: in each group exactly `zeros` weights leave, the smallest scores first.

    Ties leave in the order of the layers and of the weights in them. A score of −inf marks a weight that has left.
    Raises:
        InputError: when more weights have left already than the group is to lose.
        NumericsError: when a score is NaN.
    """
    masks = {}
    for group in groups:
        for name in group.names:
            if torch.isnan(scores[name]).any():
                raise NumericsError(f"A score of {name} is NaN; its weights or its Fisher are not finite.")
        together = torch.cat([scores[name].reshape(-1) for name in group.names])
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
