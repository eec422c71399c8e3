"""Which weights of a model can be pruned, and how each is seen as a matrix.

A weight is viewed as (out, in) with the input channels last, the axis along which N:M groups run; the blocks of the
Fisher are runs of consecutive entries of that matrix.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .errors import InputError, nearest
from .families import ANYWHERE, HEAD, core_of, family_of, model_type_of

PRUNABLE = (nn.Linear, nn.Conv1d, nn.Conv2d)
CHANNELS_LAST = {2: (0, 1), 3: (0, 2, 1), 4: (0, 2, 3, 1)}
CHANNELS_BACK = {2: (0, 1), 3: (0, 2, 1), 4: (0, 3, 1, 2)}


@dataclass(frozen=True)
class PrunableWeight:
    """A parameter, the modules that use it as their weight, and its view as a matrix."""

    name: str
    parameter: nn.Parameter
    modules: tuple[nn.Module, ...]

    @property
    def size(self) -> int:
        return self.parameter.numel()

    @property
    def shape(self) -> tuple[int, int]:
        """Of its matrix."""
        return len(self.parameter), self.size // len(self.parameter)

    @property
    def channels(self) -> int:
        """Inputs of one output: neighbours in the matrix, one run of them for each place of a kernel."""
        return self.parameter.shape[1]

    @property
    def precision(self) -> torch.dtype:
        """What its curvature is computed in: its own type, and float32 at least."""
        return torch.promote_types(self.parameter.dtype, torch.float32)

    @property
    def kind(self) -> str:
        module = self.modules[0]
        depthwise = getattr(module, "groups", 1) > 1 and module.groups == module.in_channels
        return "depthwise" if depthwise else type(module).__name__.lower()

    def matrix(self, tensor: torch.Tensor | None = None) -> torch.Tensor:
        """(out, in) with the input channels last, of the weight itself or of a tensor of its shape."""
        tensor = self.parameter.detach() if tensor is None else tensor
        return tensor.permute(CHANNELS_LAST[tensor.dim()]).reshape(tensor.shape[0], -1)

    def from_matrix(self, matrix: torch.Tensor) -> torch.Tensor:
        """A tensor of the weight's own shape, from what `matrix` returned (of any shape with as many entries)."""
        shape = self.parameter.shape
        moved = [shape[axis] for axis in CHANNELS_LAST[len(shape)]]
        return matrix.reshape(moved).permute(CHANNELS_BACK[len(shape)]).contiguous()


def prunable_weights(model: nn.Module) -> dict[str, PrunableWeight]:
    """Every weight of a linear or convolution, under the first name the model gives it."""
    users: dict[nn.Parameter, list[nn.Module]] = {}
    names: dict[nn.Parameter, str] = {}
    for module_name, module in model.named_modules():
        if isinstance(module, PRUNABLE) and isinstance(module.weight, nn.Parameter) and module.weight.numel():
            users.setdefault(module.weight, []).append(module)
            names.setdefault(module.weight, f"{module_name}.weight".removeprefix("."))
    return {names[p]: PrunableWeight(names[p], p, tuple(modules)) for p, modules in users.items()}


def select_layers(model: nn.Module, layers: str | Sequence[str] | None = None) -> dict[str, PrunableWeight]:
    """The weights to prune, in the model's order.

    Args:
        layers: globs, or regular expressions after `re:`, matched against the weight's name with or without
            ".weight"; a leading `!` takes the matches away again, from the default rule where it comes with no
            other pattern. None means the default rule: every linear and convolution except the stem, the depthwise
            ones and the classifier.
    Raises:
        InputError: when a pattern, or all of them together, match nothing.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1))
    >>> list(select_layers(model)), list(select_layers(model, "!1"))
    (['1.weight', '2.weight'], ['2.weight'])
    """
    weights = prunable_weights(model)
    if layers is None:
        dense = kept_dense(model, weights)
        chosen = {name for name in weights if name not in dense}
        if not chosen:
            raise InputError(
                f"{type(model).__name__} has no weight to prune: the default rule keeps {sorted(dense) or 'nothing'}"
                " dense; name the layers you want with a pattern."
            )
        return {name: weight for name, weight in weights.items() if name in chosen}
    return _matching(model, weights, [layers] if isinstance(layers, str) else list(layers))


def _matching(model: nn.Module, weights: dict[str, PrunableWeight], patterns: list[str]) -> dict[str, PrunableWeight]:
    positive = [p for p in patterns if not p.startswith("!")]
    chosen = set() if positive or not patterns else set(select_layers(model))
    for pattern in patterns:
        matches = matching_names(weights, pattern.removeprefix("!"), type(model).__name__)
        chosen = chosen - matches if pattern.startswith("!") else chosen | matches
    if not chosen:
        raise InputError(f"The patterns {patterns} leave no layer of {type(model).__name__} to prune.")
    return {name: weight for name, weight in weights.items() if name in chosen}


def matching_names(names: Iterable[str], pattern: str, model: str = "the model") -> set[str]:
    """The names that a glob, or a regular expression after `re:`, matches.

    Raises:
        InputError: when it matches none, with the nearest names.
    """
    names = list(names)
    matches = {name for name in names if _matches(name, pattern)}
    if not matches:
        near = nearest(pattern, [name.removesuffix(".weight") for name in names])
        raise InputError(
            f"The pattern {pattern!r} matches no layer of {model}.{near}"
            f" `secateur layers` lists the {len(names)} that can be pruned."
        )
    return matches


def _matches(name: str, pattern: str) -> bool:
    names = (name, name.removesuffix(".weight"))
    if pattern.startswith("re:"):
        try:
            return any(re.search(pattern[3:], n) for n in names)
        except re.error as error:
            raise InputError(f"{pattern!r} is no regular expression: {error}.") from None
    return any(fnmatch.fnmatchcase(n, pattern) for n in names)


# --- what the default rule keeps dense --------------------------------------------------------------------------------


def kept_dense(model: nn.Module, weights: Mapping[str, PrunableWeight]) -> dict[str, str]:
    """Name → reason, for the weights the default rule leaves alone, in the model's order."""
    prefix, core = core_of(model)
    own = {name.removeprefix(prefix): weight for name, weight in weights.items()}
    reasons = {**ANYWHERE, **family_of(core).dense}
    dense = {name: why for pattern, why in reasons.items() for name in own if _matches(name, pattern)}
    dense |= {name: "depthwise: a few weights per channel" for name, w in own.items() if w.kind == "depthwise"}
    dense |= dict.fromkeys(_heads(core, own), HEAD)
    dense |= dict.fromkeys(_stem(core, own), "stem: few weights, all of them seen by every image")
    return {prefix + name: dense[name] for name in own if name in dense}


def _heads(model: nn.Module, weights: Mapping[str, PrunableWeight]) -> list[str]:
    """What timm calls the classifier, what is outside of transformers' base model, or the last of what is called so."""
    config = getattr(model, "pretrained_cfg", None) or {}
    if names := config.get("classifier"):
        return _inside(model, weights, names)
    base = getattr(model, "base_model", model) if model_type_of(model) else model
    if base is not model:
        within = {id(module) for module in base.modules()}
        return [name for name, weight in weights.items() if not any(id(m) in within for m in weight.modules)]
    last = (
        [name for name in weights if name.startswith((f"{called}.", f"{called}s."))][-1:]
        for called in ("head", "fc", "classifier")
    )
    return [name for found in last for name in found]


def _stem(model: nn.Module, weights: Mapping[str, PrunableWeight]) -> list[str]:
    """What timm calls the first convolution; elsewhere a convolution that the model lists first."""
    config = getattr(model, "pretrained_cfg", None) or {}
    if names := config.get("first_conv"):
        return _inside(model, weights, names)
    return [name for name, weight in list(weights.items())[:1] if "conv" in weight.kind]


def _inside(model: nn.Module, weights: Mapping[str, PrunableWeight], names: str | Sequence[str]) -> list[str]:
    """The weights of the modules called so, and of those in them."""
    names = (names,) if isinstance(names, str) else tuple(names)
    inside = {id(m) for name, top in model.named_modules() if name in names for m in top.modules()}
    return [name for name, weight in weights.items() if any(id(m) in inside for m in weight.modules)]
