"""Weights by name, in a model and in whatever it is wrapped in: DDP, torch.compile, checkpointing, copies for EMA."""

from dataclasses import dataclass

from torch import nn

from ..errors import InputError, nearest

INSERTED = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}  # wrappers put these anywhere in a name


@dataclass(frozen=True)
class Place:
    """Where a weight is held: moving a model may put another parameter there."""

    module: nn.Module
    attribute: str

    @property
    def weight(self) -> nn.Parameter:
        return getattr(self.module, self.attribute)


def places(model: nn.Module) -> dict[str, Place]:
    """Every parameter under each of its names: those the model gives, and those without wrappers where that is free."""
    own = {}
    for module_name, module in model.named_modules(remove_duplicate=False):
        for attribute, _ in module.named_parameters(recurse=False, remove_duplicate=False):
            own[f"{module_name}.{attribute}".removeprefix(".")] = Place(module, attribute)
    return {unwrapped(name): place for name, place in own.items()} | own


def place_of(name: str, found: dict[str, Place], model: nn.Module) -> Place:
    """The place of a weight among `places(model)`.

    Raises:
        InputError: when the model has no such weight, with the nearest names.
    """
    place = found.get(name) or found.get(unwrapped(name))
    if place is None:
        raise InputError(f"{type(model).__name__} has no weight {name!r}.{nearest(name, found)}")
    return place


def unwrapped(name: str) -> str:
    """The name without what wrappers add to it."""
    parts = [part for part in name.split(".") if part not in INSERTED]
    while len(parts) > 2 and parts[0] == "module":  # DDP, AveragedModel, ModelEma
        parts = parts[1:]
    return ".".join(parts)
