"""Convolutional networks as graphs: batch normalisation goes into the convolution before it, and what follows a
convolution is found, an addition and an activation, for a kernel that does all three.

Traced with torch.fx, which shows who reads a layer's output. Only evaluation is meant. What cannot be traced is None.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from .activations import activation_name

_ADDITIONS = (operator.add, operator.iadd, torch.add)


@dataclass(frozen=True)
class Chain:
    """A convolution, what is added to its output (or None), and the activation after that."""

    convolution: fx.Node
    added: fx.Node | None
    activation: nn.Module
    last: fx.Node


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, BatchNormAct2d) or super().is_leaf_module(m, module_qualified_name)


def folded(model: nn.Module) -> fx.GraphModule | None:
    """The model as a graph, every batch normalisation after a convolution multiplied into it."""
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        return None
    try:
        traced = fx.GraphModule(model, _Tracer().trace(model))
    except Exception:  # whatever a model's own code raises when it meets a stand-in for a tensor
        return None
    node: Any
    for node in list(traced.graph.nodes):
        before: Any = node.args[0] if node.args else None
        norm: Any = module_of(traced, node)
        convolution = module_of(traced, before)
        if _folds(norm) and type(convolution) is nn.Conv2d and _only_reader(before) == node:
            _put(traced, before, f"folded_{before.name}", fuse_conv_bn_eval(convolution, norm))
            _put(traced, node, f"after_{node.name}", getattr(norm, "act", nn.Identity()))
    for node in list(traced.graph.nodes):
        if type(module_of(traced, node)) in (nn.Identity, nn.Dropout):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    return recompiled(traced)


def chain_from(traced: fx.GraphModule, node: fx.Node, shapes: dict[fx.Node, torch.Size]) -> Chain:
    """A convolution, with as much of what follows it as one kernel can do."""
    added, last = _addition(node, shapes)
    reader = _only_reader(last)
    activation = module_of(traced, reader)
    if reader is None or activation is None or activation_name(activation) in (None, "none"):
        return Chain(node, added, nn.Identity(), last)
    return Chain(node, added, activation, reader)


def put_chain(traced: fx.GraphModule, chain: Chain, module: nn.Module) -> fx.Node:
    """The chain's work done by one module, called with the input and with what is added; the node that calls it."""
    inputs = (chain.convolution.args[0],) if chain.added is None else (chain.convolution.args[0], chain.added)
    name = f"sparse_{chain.convolution.name}"
    traced.add_submodule(name, module)
    with traced.graph.inserting_before(chain.last):
        new = traced.graph.call_module(name, inputs)
    chain.last.replace_all_uses_with(new)
    return new


def recompiled(traced: fx.GraphModule) -> fx.GraphModule:
    traced.graph.eliminate_dead_code()
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def shapes_of(traced: fx.GraphModule, example: Tensor) -> dict[fx.Node, torch.Size]:
    """The shape of the tensor that each node gives."""
    shapes: dict[fx.Node, torch.Size] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, Tensor):
                shapes[n] = result.shape
            return result

    with torch.no_grad():
        Recorder(traced).run(example)
    return shapes


def module_of(traced: fx.GraphModule, node: Any) -> nn.Module | None:
    is_call = isinstance(node, fx.Node) and node.op == "call_module"
    return traced.get_submodule(str(node.target)) if is_call else None


def _folds(norm: Any) -> bool:
    """Whether a module is nothing but batch normalisation by stored statistics, and an activation."""
    plain = isinstance(getattr(norm, "drop", nn.Identity()), nn.Identity)
    return type(norm) in (nn.BatchNorm2d, BatchNormAct2d) and norm.running_mean is not None and plain


def _put(traced: fx.GraphModule, node: fx.Node, name: str, module: nn.Module) -> None:
    traced.add_submodule(name, module)
    node.target = name


def _only_reader(node: Any) -> fx.Node | None:
    readers = list(node.users) if isinstance(node, fx.Node) else []
    return readers[0] if len(readers) == 1 else None


def _addition(node: fx.Node, shapes: dict[fx.Node, torch.Size]) -> tuple[fx.Node | None, fx.Node]:
    """(what is added to a node's output, the addition), or (None, the node)."""
    reader = _only_reader(node)
    if reader is not None and reader.op == "call_function" and reader.target in _ADDITIONS and not reader.kwargs:
        others = [argument for argument in reader.args if argument is not node]
        if len(others) == 1 and isinstance(others[0], fx.Node) and shapes.get(others[0]) == shapes[node]:
            return others[0], reader
    return None, node
