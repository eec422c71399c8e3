"""Sparse from the first step to the last: random masks that move on the way, each layer with the zeros it started with.

Every `interval` steps the smallest kept weights of a layer are dropped and as many others grow, from zero: those with
the largest gradients (RigL, Evci et al. 2020, arXiv:1911.11134; SViTE, Chen et al. 2021, arXiv:2106.04533, is RigL on
vision transformers) or random ones (SET, Mocanu et al. 2018). The share that moves falls as α/2 · (1 + cos(πt/T)).
Cost of an update: two selections a layer; the gradient is the dense one of that step, which a masked model has anyway.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..allocate import Group, allocate, smallest
from ..errors import InputError, NumericsError, check_fraction, check_whole

DISTRIBUTIONS = ("erk", "uniform")
GROWTHS = ("gradient", "random")


@dataclass(frozen=True)
class RigL:
    """When masks move and by how much; `interval` and `end` count in whatever the loop counts, such as steps.

    >>> rigl = RigL(interval=100, end=1000)
    >>> [step for step in range(1200) if rigl.updates_at(step)]
    [100, 200, 300, 400, 500, 600, 700, 800, 900]
    >>> rigl.fraction_at(0), round(rigl.fraction_at(500), 3), rigl.fraction_at(1000)
    (0.3, 0.15, 0.0)
    """

    end: int  # T, when masks stop moving
    interval: int = 100  # ΔT
    fraction: float = 0.3  # α, of a layer's kept weights, at the start
    growth: str = "gradient"
    distribution: str = "erk"

    def __post_init__(self) -> None:
        check_whole(interval=self.interval, end=self.end)
        check_fraction(fraction=self.fraction)
        _check_choice("growth", self.growth, GROWTHS)
        _check_choice("distribution", self.distribution, DISTRIBUTIONS)

    def updates_at(self, step: int) -> bool:
        """Whether masks move at this step."""
        return 0 < step < self.end and step % self.interval == 0

    def fraction_at(self, step: int) -> float:
        """The share of a layer's kept weights that moves at this step."""
        return self.fraction / 2 * (1 + math.cos(math.pi * min(step, self.end) / self.end))


def _check_choice(what: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise InputError(f"There is no {what} {given!r}; choose {' or '.join(choices)}.")


# --- where it starts --------------------------------------------------------------------------------------------------


def starting_groups(shapes: Mapping[str, torch.Size], sparsity: float, distribution: str = "erk") -> list[Group]:
    """How many zeros each layer holds: round(sparsity · weights) in all, or in each where they are uniform."""
    _check_choice("distribution", distribution, DISTRIBUTIONS)
    if distribution == "erk":
        return erdos_renyi_groups(shapes, sparsity)
    check_fraction(sparsity=sparsity)
    return [Group((name,), round(sparsity * shape.numel())) for name, shape in shapes.items()]


def erdos_renyi_groups(shapes: Mapping[str, torch.Size], sparsity: float) -> list[Group]:
    """Erdős–Rényi-Kernel: a layer keeps weights in proportion to the sum of its dimensions, so narrow ones stay denser.

    A layer that would keep more than it has is dense, and the others share the rest. In whole numbers: the largest
    remainders get the weights that rounding down leaves over, the first layers where they tie.
    """
    check_fraction(sparsity=sparsity)
    total = sum(shape.numel() for shape in shapes.values())
    rest, dense = total - round(sparsity * total), set()  # rest: weights for the layers that are not dense
    while True:
        widths = {name: sum(shape) for name, shape in shapes.items() if name not in dense}
        full = [name for name, width in widths.items() if rest * width > shapes[name].numel() * sum(widths.values())]
        if not full:
            break
        dense.update(full)
        rest -= sum(shapes[name].numel() for name in full)
    shares = {name: divmod(rest * width, sum(widths.values())) for name, width in widths.items()}
    over = rest - sum(whole for whole, _ in shares.values())
    rounded_up = sorted(shares, key=lambda name: -shares[name][1])[:over]
    return [
        Group((n,), 0 if n in dense else shape.numel() - shares[n][0] - (n in rounded_up))
        for n, shape in shapes.items()
    ]


def random_masks(shapes: Mapping[str, torch.Size], groups: list[Group], seed: int) -> dict[str, Tensor]:
    """Masks with exactly the zeros of the groups, at random places; the same for the same seed, on any machine."""
    return allocate(random_scores(shapes, seed), groups)


def random_scores(shapes: Mapping[str, torch.Size], seed: int) -> dict[str, Tensor]:
    """A number from 0 to 1 for each weight: what to give `updated_masks` as gradients for random growth."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}


# --- how it moves -----------------------------------------------------------------------------------------------------


def updated_masks(
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None], masks: Mapping[str, Tensor], fraction: float
) -> dict[str, Tensor]:
    """Masks of which in each layer `fraction` of the kept weights has moved.

    A weight that is dropped and has a large gradient grows again at once, and keeps its value; the others start at zero
    when `MaskKeeper.set_masks_` is given the masks.
    Args:
        gradients: of the loss with respect to all weights, those that are zero included; a layer without one stays.
    Raises:
        InputError: when shapes differ.
        NumericsError: when a kept weight or a gradient is NaN.
    """
    check_fraction(fraction=fraction)
    moved = {}
    for name, mask in masks.items():
        if name not in gradients or name not in weights:
            raise InputError(f"{name} has a mask and no weight or no gradient; give both for each mask.")
        gradient = gradients[name]
        if gradient is None:  # the loss did not see it
            moved[name] = mask.clone()
            continue
        if not weights[name].shape == gradient.shape == mask.shape:
            raise InputError(
                f"{name} has weights of shape {tuple(weights[name].shape)}, gradients of {tuple(gradient.shape)} and a"
                f" mask of {tuple(mask.shape)}; give the dense gradient of the weights."
            )
        if torch.isnan(gradient).any() or torch.isnan(weights[name][mask]).any():
            raise NumericsError(f"{name} holds NaN in its weights or its gradient; nothing can be chosen by them.")
        moved[name] = _updated(weights[name], gradient, mask, fraction)
    return moved


def _updated(weight: Tensor, gradient: Tensor, mask: Tensor, fraction: float) -> Tensor:
    keep, magnitude, slope = mask.reshape(-1), _sizes(weight), _sizes(gradient)  # (weights,)
    count = round(fraction * int(keep.sum()))
    stays = keep & ~smallest(torch.where(keep, magnitude, torch.inf), count)
    grown = smallest(torch.where(stays, torch.inf, -slope), count)
    return (stays | grown).view(mask.shape)


def _sizes(tensor: Tensor) -> Tensor:
    return tensor.detach().abs().reshape(-1).to(torch.promote_types(tensor.dtype, torch.float32))
