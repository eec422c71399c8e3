"""Zeros that stay zero while a model trains, in a training loop of anybody's.

The optimizer calls back after each of its steps, and what a mask drops is set to zero again: in the weights, and in the
optimizer's tensors of their shape (momentum, second moments, slow weights). The forward pass is as it was: no hook of a
module, no parametrization, nothing that torch.compile could miss. Cost of a step: one pass over the weights that have
masks and one over each of their moments; memory: one byte a weight.
"""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..errors import InputError, NumericsError
from ..layers import prunable_weights
from ..tensor_files import pack_mask, unpack_mask
from .naming import Place, place_of, places
from .stepping import held_by, moments_of, that_call_back


class MaskKeeper:
    """Keeps the weights of a model that masks drop at exactly zero.

    Names may be those of the model or of what it is wrapped in (DDP, torch.compile); a weight that modules share has
    any of its names. Masks that change go through `set_masks_`.

    Args:
        masks: {weight name: bool tensor of its shape, True where kept}; by default, for each linear layer and
            convolution that holds zeros, the weights that are not zero.
    Raises:
        InputError: when a mask names no weight or does not fit it, or there is nothing to keep.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    >>> optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    >>> keeper = MaskKeeper(model, {"0.weight": torch.eye(4, dtype=torch.bool)})
    >>> keeper.attach(optimizer)
    >>> model(torch.randn(8, 4)).sum().backward()
    >>> optimizer.step()
    >>> int((model[0].weight != 0).sum()), keeper.sparsity
    (4, 0.75)
    """

    def __init__(self, model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> None:
        self.model = model
        self._places, self._dropped = _checked(model, _masks_of(model) if masks is None else masks)
        self._handles: WeakKeyDictionary[Optimizer, RemovableHandle] = WeakKeyDictionary()

    @property
    def masks(self) -> dict[str, Tensor]:
        """{weight name: True where kept}"""
        return {name: ~dropped for name, dropped in self._dropped.items()}

    @property
    def sparsity(self) -> float:
        """The fraction of zeros in the masks."""
        zeros = sum(int(dropped.sum()) for dropped in self._dropped.values())
        return zeros / sum(dropped.numel() for dropped in self._dropped.values())

    def set_masks_(self, masks: Mapping[str, Tensor]) -> None:
        """Keep other masks from now on: what they drop becomes zero in the model and in the attached optimizers.

        Weights without a mask are free. A weight that comes back starts at zero, and its moments too.
        Raises:
            InputError: as when the keeper is made; the masks of before then stay.
        """
        self._places, self._dropped = _checked(self.model, masks)
        self._zero_all()

    def attach(self, *optimizers: Optimizer) -> None:
        """Zero what the masks drop, now and after each step of the optimizers.

        Those inside them (in accelerate's, Lightning's, timm's Lookahead) are attached too; attached twice is once.
        Raises:
            InputError: when an optimizer does not call back, or none of them holds any of the weights.
        """
        stepping = [inside for optimizer in optimizers for inside in that_call_back(optimizer)]
        held = set().union(*(held_by(optimizer) for optimizer in stepping))
        if not any(place.weight in held for place in self._places.values()):
            raise InputError(
                f"{' and '.join(type(o).__name__ for o in optimizers) or 'No optimizer'} holds none of the"
                f" {len(self._places)} weights that have masks, such as {next(iter(self._places))}; attach one made"
                " from the parameters of the keeper's model."
            )
        for optimizer in stepping:
            if optimizer not in self._handles:
                self._handles[optimizer] = optimizer.register_step_post_hook(self._after_step)
        self._zero_all()

    def detach(self) -> None:
        """Let go of every optimizer."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def apply_to_(self, model: nn.Module) -> None:
        """Zero what the masks drop in any model with weights of these names, such as an EMA copy.

        Raises:
            InputError: when it lacks one of them, or has it in another shape; nothing has changed then.
        """
        found = places(model)
        weights = {name: place_of(name, found, model).weight for name in self._dropped}
        for name, weight in weights.items():
            _check_fits(name, self._dropped[name], weight)
        for name, weight in weights.items():
            _zero(weight, self._dropped[name])

    def verify(self) -> None:
        """Raise NumericsError, naming the layer, when a weight that its mask drops is not zero."""
        for name, place in self._places.items():
            moved = int((place.weight.detach()[self._dropped[name].to(place.weight.device)] != 0).sum())
            if moved:
                raise NumericsError(
                    f"{name} has {moved} weights that its mask drops and that are not zero: something else than an"
                    " attached optimizer wrote them; call apply_to_(model) after it."
                )

    def state_dict(self) -> dict[str, Tensor]:
        """{weight name: its mask, eight weights to a byte}; see `tensor_files.pack_mask`."""
        return {name: pack_mask(mask) for name, mask in self.masks.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """`set_masks_` with the masks that `state_dict` gave.

        Raises:
            InputError: when one names no weight or does not fit it.
        """
        found, masks = places(self.model), {}
        for name, packed in state.items():
            shape = list(place_of(name, found, self.model).weight.shape)
            try:
                masks[name] = unpack_mask(packed, shape)
            except InputError as error:
                raise InputError(f"The mask of {name} does not fit it: {error}") from None
        self.set_masks_(masks)

    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._zero_held_by(optimizer)

    def _zero_all(self) -> None:
        for name, place in self._places.items():
            _zero(place.weight, self._dropped[name])
        for optimizer in self._handles:
            self._zero_held_by(optimizer)

    def _zero_held_by(self, optimizer: Optimizer) -> None:
        held = held_by(optimizer)
        for name, place in self._places.items():
            weight = place.weight
            if weight in held:
                self._dropped[name] = self._dropped[name].to(weight.device)  # where the model has been moved
                _zero(weight, self._dropped[name])
                for moment in moments_of(weight, optimizer):
                    _zero(moment, self._dropped[name])


@torch.no_grad()
def _zero(tensor: Tensor, where: Tensor) -> None:
    """A product would leave −0, and NaN where a moment has become one."""
    tensor.masked_fill_(where.to(tensor.device), 0)


# --- what is checked before the work ----------------------------------------------------------------------------------


def _masks_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are not zero, of each linear layer and convolution that holds zeros."""
    masks = {name: weight.parameter.detach() != 0 for name, weight in prunable_weights(model).items()}
    for name, mask in masks.items():
        if not mask.any():
            raise InputError(
                f"{name} is zero throughout: pruned, or not trained yet? Give the masks, as prune_ returned them."
            )
    return {name: mask for name, mask in masks.items() if not mask.all()}


def _checked(model: nn.Module, masks: Mapping[str, Tensor]) -> tuple[dict[str, Place], dict[str, Tensor]]:
    """Where each masked weight is, and what its mask drops, laid out as the weight is."""
    if not masks:
        raise InputError(f"There is nothing to keep: {type(model).__name__} has no zeros and no masks; prune it first.")
    found = places(model)
    kept = {name: place_of(name, found, model) for name in masks}
    first: dict[nn.Parameter, str] = {}
    for name, mask in masks.items():
        weight = kept[name].weight
        _check_fits(name, mask, weight)
        other = first.setdefault(weight, name)
        if other != name and not torch.equal(masks[other].cpu(), mask.cpu()):
            raise InputError(f"{other} and {name} are one weight with two masks that differ; give one of them.")
    dropped = {name: torch.empty_like(kept[name].weight, dtype=torch.bool).copy_(~masks[name]) for name in masks}
    return kept, dropped


def _check_fits(name: str, mask: Tensor, weight: nn.Parameter) -> None:
    if hasattr(weight, "device_mesh"):  # a DTensor
        raise InputError(
            f"{name} is sharded among processes, as FSDP does; masks are kept where each process has whole weights,"
            " as with DDP."
        )
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != weight.shape:
        given = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(f"The mask of {name} is {given}; it must be torch.bool of shape {tuple(weight.shape)}.")
