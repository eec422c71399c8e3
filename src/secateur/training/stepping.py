"""What is asked of optimizers: to call back after a step, which weights they hold, what they remember of each."""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError


def that_call_back(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizer and those inside it, as far as they take hooks for their steps.

    A wrapper made without `Optimizer.__init__` may take hooks that are not called, or not before its first `zero_grad`;
    so it is not enough to ask the outermost one.
    Raises:
        InputError: when none of them calls its hooks.
    """
    chain: list[Optimizer] = []
    found: Optimizer | None = optimizer
    while found is not None:
        if "_optimizer_step_post_hooks" in getattr(found, "__dict__", {}):
            chain.append(found)
        found = next((o for o in getattr(found, "__dict__", {}).values() if isinstance(o, Optimizer)), None)
    if not any(getattr(type(inside).step, "hooked", False) for inside in chain):
        raise InputError(
            f"{type(optimizer).__name__} does not call back after its steps, as torch.optim.Optimizer does; call"
            " keeper.apply_to_(model) after each of them instead."
        )
    return chain


def held_by(optimizer: Optimizer) -> set[nn.Parameter]:
    """The parameters that it steps; groups may be added on the way."""
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def moments_of(weight: nn.Parameter, optimizer: Optimizer) -> Iterator[Tensor]:
    """What it remembers of every single entry: momentum, second moments, slow weights, a copy in another precision."""
    for tensor in optimizer.state.get(weight, {}).values():
        if isinstance(tensor, Tensor) and tensor.shape == weight.shape and tensor.is_floating_point():
            yield tensor
