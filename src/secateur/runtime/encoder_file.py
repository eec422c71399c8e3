"""A whole-encoder module as a description and arrays, and back without the class of the model it came from.

What is read may come from anywhere. Sizes and names are checked here; native code goes through every offset and count
of a packed matrix (`check_packed` of csrc/pack.cpp) before a kernel sees it, and through the shapes of all together.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import native
from ..errors import InputError
from .container import Arrays
from .modules import SparseTransformer
from .vit import Head

MATRICES = ("qkv", "projection", "up", "down")
PACKED = ("tiles", "values", "offsets", "bias")
TYPES = {"tiles": "int32", "values": "float32", "offsets": "uint16", "bias": "float32"}
NUMBERS = ("prefix", "heads", "head_size")
MOST = 65536  # of any size; native code has the same bound
Description = dict[str, Any]


def describe_encoder(module: SparseTransformer) -> tuple[Description, Arrays]:
    """What `rebuild_encoder` needs.

    Raises:
        InputError: when the head holds a module that the file has no word for.
    """
    parts = module.encoder.parts
    matrices, epsilons = {"patches": parts["patches"]}, []
    for number, block in enumerate(parts["blocks"]):
        matrices |= {f"blocks.{number}.{name}": matrix for name, matrix in zip(MATRICES, block, strict=False)}
        epsilons.append(list(block[len(MATRICES) :]))
    arrays = {f"{name}.{part}": getattr(m, part) for name, m in matrices.items() for part in PACKED}
    arrays["start"] = module.encoder.start
    head, own = _describe_head(module.head)
    description = {
        "kind": "encoder",
        **{name: parts[name] for name in ("image", *NUMBERS, "activation")},
        "epsilons": epsilons,
        "matrices": {name: [m.rows, m.columns, m.width] for name, m in matrices.items()},
        "head": head,
    }
    return description, arrays | own


def rebuild_encoder(description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> SparseTransformer:
    """The module that `describe_encoder` described.

    Raises:
        InputError: when a field is missing, out of range or does not fit the others; it is named.
    """
    if not native.available():
        raise InputError(f"A compiled model needs the compiled kernels: {native.describe()['reason']}.")
    used: set[str] = set()
    encoder = _encoder(description, arrays, used)
    head = _rebuild_head(_field(description, "head", dict), arrays, encoder, used)
    if unknown := set(arrays) - used:
        raise InputError(f"array {min(unknown)} belongs to nothing.")
    return SparseTransformer(encoder, head).eval()


def _encoder(description: Mapping[str, Any], arrays: Mapping[str, np.ndarray], used: set[str]) -> Any:
    image = _field(description, "image", list)
    _require(len(image) == 5 and all(_is_whole(size, 1) for size in image), "image is no list of five sizes")
    numbers = {name: _field(description, name, int) for name in NUMBERS}
    for name, number in numbers.items():
        _require(_is_whole(number, 0), f"{name} is {number}, not from 0 to {MOST}")
    epsilons = _field(description, "epsilons", list)
    shapes = _field(description, "matrices", dict)
    names = ["patches", *(f"blocks.{b}.{name}" for b in range(len(epsilons)) for name in MATRICES)]
    _require(set(shapes) == set(names), "matrices are not those of the blocks")
    matrices = {name: _matrix(name, shapes[name], arrays, used) for name in names}
    start = _array(arrays, "start", used, 1)
    features = matrices["patches"].rows
    _require(start.size % features == 0, "start does not fit the rows of patches")
    encoder = _native(
        "image, heads or start", native.core().Encoder.make, image, *numbers.values(),
        _field(description, "activation", str), matrices["patches"], start.reshape(features, -1),
    )  # fmt: skip
    for number, pair in enumerate(epsilons):
        right = isinstance(pair, list) and len(pair) == 2 and all(type(e) is float and 0 < e < 1 for e in pair)
        _require(right, f"epsilons[{number}] are no two numbers between 0 and 1")
        block = [matrices[f"blocks.{number}.{name}"] for name in MATRICES]
        _native(f"blocks.{number}", encoder.add_block, *block, *pair)
    return encoder


def _matrix(name: str, shape: Any, arrays: Mapping[str, np.ndarray], used: set[str]) -> Any:
    right = isinstance(shape, list) and len(shape) == 3 and all(type(n) is int and 0 < n < 2**30 for n in shape)
    _require(right, f"matrices.{name} is no list of rows, columns and width")
    parts = [_array(arrays, f"{name}.{part}", used, 1, TYPES[part]) for part in PACKED]
    return _native(name, native.core().PackedMatrix.from_arrays, *shape, *parts)


def _native(where: str, call: Any, *arguments: Any) -> Any:
    """What native code makes of them, its refusal as an InputError that says where."""
    try:
        return call(*arguments)
    except (ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{where}: {reason}.") from None


# --- the head ---------------------------------------------------------------------------------------------------------


def _describe_head(head: Head) -> tuple[Description, Arrays]:
    modules = {"norm": head.norm, "fc_norm": head.fc_norm}
    modules |= {f"classifiers.{i}": module for i, module in enumerate(head.classifiers)}
    description: Description = {"pool": head.pool, "prefix": head.prefix, "from_token": head.from_token, "modules": {}}
    arrays: Arrays = {}
    for name, module in modules.items():
        if isinstance(module, nn.LayerNorm):
            description["modules"][name] = {"kind": "norm", "epsilon": module.eps}
        elif type(module) is nn.Linear or isinstance(module, nn.Identity):
            description["modules"][name] = {"kind": "linear" if isinstance(module, nn.Linear) else "identity"}
        else:
            raise InputError(f"The model's {name} is a {type(module).__name__}, which a compiled file cannot hold.")
        arrays |= {f"head.{name}.{n}": p.detach().float().numpy() for n, p in module.named_parameters()}
    return description, arrays


def _rebuild_head(given: Mapping[str, Any], arrays: Mapping[str, np.ndarray], encoder: Any, used: set[str]) -> Head:
    pool, prefix, first = (_field(given, n, k) for n, k in (("pool", str), ("prefix", int), ("from_token", int)))
    modules = _field(given, "modules", dict)
    count = len(modules) - 2
    names = ["norm", "fc_norm", *(f"classifiers.{i}" for i in range(count))]
    _require(
        1 <= count <= 2 and set(modules) == set(names), "head.modules are not two norms and one or two classifiers"
    )
    _require(pool in ("token", "avg"), f"head.pool is {pool!r:.40}, neither token nor avg")
    _require(0 <= prefix < encoder.tokens and first in (0, prefix), "head.prefix or head.from_token is out of range")
    _require(pool == "avg" or count <= (prefix or encoder.tokens), "head.prefix is less than there are classifiers")
    made = {name: _module(name, modules[name], arrays, encoder.features, used) for name in names}
    for name in names[:2]:
        _require(not isinstance(made[name], nn.Linear), f"head.{name} is no norm")
    return Head(made["norm"], made["fc_norm"], [made[name] for name in names[2:]], pool, prefix, first)


def _module(name: str, given: Any, arrays: Mapping[str, np.ndarray], features: int, used: set[str]) -> nn.Module:
    kind = given.get("kind") if isinstance(given, dict) else None
    weight_name, bias_name = f"head.{name}.weight", f"head.{name}.bias"
    if kind == "identity":
        return nn.Identity()
    bias = _array(arrays, bias_name, used, 1) if bias_name in arrays else None
    if kind == "norm":
        epsilon = given.get("epsilon")
        _require(type(epsilon) is float and 0 < epsilon < 1, f"head.{name}.epsilon is no number between 0 and 1")
        weight = _array(arrays, weight_name, used, 1) if weight_name in arrays else None
        _require(weight is not None or bias is None, f"head.{name} has a bias and no weight")
        _require(
            all(a is None or a.shape == (features,) for a in (weight, bias)), f"head.{name} does not fit the features"
        )
        norm = nn.LayerNorm(features, epsilon, weight is not None, bias is not None)
        return _filled(norm, weight, bias)
    _require(kind == "linear", f"head.{name}.kind is none of identity, norm and linear")
    weight = _array(arrays, weight_name, used, 2)
    fits = weight.shape[1] == features and len(weight) and (bias is None or bias.shape == weight.shape[:1])
    _require(fits, f"head.{name} does not fit the features")
    return _filled(nn.Linear(features, len(weight), bias is not None), weight, bias)


def _filled(module: nn.Module, weight: np.ndarray | None, bias: np.ndarray | None) -> nn.Module:
    for name, array in (("weight", weight), ("bias", bias)):
        if array is not None:
            getattr(module, name).data = torch.from_numpy(array.copy())
    return module.requires_grad_(False)


# --- fields -----------------------------------------------------------------------------------------------------------


def _array(
    arrays: Mapping[str, np.ndarray], name: str, used: set[str], dimensions: int, kind: str = "float32"
) -> np.ndarray:
    _require(name in arrays, f"array {name} is missing")
    array = arrays[name]
    right = array.ndim == dimensions and array.dtype == np.dtype(kind)
    _require(right, f"array {name} is {array.dtype} {list(array.shape)}, not {dimensions}-d {kind}")
    _require(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"array {name} holds NaN or infinity")
    used.add(name)
    return array


def _field(given: Mapping[str, Any], name: str, kind: type) -> Any:
    _require(type(given.get(name)) is kind, f"{name} should be of type {kind.__name__}")
    return given[name]


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MOST


def _require(right: object, problem: str) -> None:
    if not right:
        raise InputError(f"{problem}.")
