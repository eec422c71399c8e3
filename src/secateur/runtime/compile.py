"""compile_sparse: a model as a new module that skips its zeros."""

import copy
from collections import defaultdict

import torch
from torch import Tensor, fx, nn

from .. import native
from ..errors import InputError
from .activations import activation_name
from .choice import DENSEST, can_be_sparse, can_pool, is_faster, sparse_layer
from .fusion import Chain, chain_from, folded, module_of, put_chain, recompiled, shapes_of
from .modules import InParts, SparseConv2d, SparseTransformer
from .vit import encoder_of

_ROUNDING = 1e-4  # of the largest output: what a compiled model may differ by
_BATCH = 8  # images that layers are timed on, at most
_PART = 8 * 3 * 224 * 224  # numbers in the images that go through a convolutional network together, at most


@torch.no_grad()
def compile_sparse(model: nn.Module, example: Tensor | None = None, measure: bool = True) -> nn.Module:
    """The model in evaluation mode as a new module that skips the zeros of its weights, on the CPU and in float32.

    timm's vision transformers (ViT, DeiT) run as a whole on native kernels. Of other models the linear layers and
    convolutions with enough zeros do, and batch normalisation, additions and activations around convolutions with them.

    Args:
        model: any module; it stays unchanged. Weights count as pruned where they are zero.
        example: a batch of inputs like those to come; layers are timed on what they get of it. By default eight random
            images of the size the model's configuration names.
        measure: keep a layer dense where that is faster on this machine, and the whole model where nothing is gained;
            False takes the kernels wherever they can be used.

    Returns:
        A module with the same outputs up to rounding. It has no gradients, and can be called from several threads.

    >>> import secateur, torch
    >>> model = secateur.load_model("bundled").eval()
    >>> fast = secateur.compile_sparse(model)
    >>> images = torch.rand(2, 1, 28, 28)
    >>> torch.allclose(fast(images), model(images), atol=1e-4)
    True
    """
    own = copy.deepcopy(model).eval()
    encoder = encoder_of(own) if native.available() else None
    if encoder:
        whole = SparseTransformer(*encoder)
        images = torch.rand(_BATCH, *whole.image) if example is None else example.detach()[:_BATCH]
        gains = _agrees(whole, images, own(images)) and (not measure or is_faster(whole, own, [images.shape]))
        return whole if gains else own
    if not native.available() or not any(can_be_sparse(module) for module in own.modules()):
        return own
    images = (_example(own) if example is None else example.detach())[:_BATCH]
    outputs = own(images)
    graph = _graph(own, images)
    compiled = own if graph is None else _compile_chains(graph, images, measure)
    compiled = _in_parts(_compile_modules(compiled, images, measure), images, measure)
    return compiled if _agrees(compiled, images, outputs) else copy.deepcopy(model).eval()


def _agrees(module: nn.Module, images: Tensor, wanted: object) -> bool:
    """Whether a module gives one tensor, and this one up to rounding."""
    try:
        found = module(images)
    except Exception:  # a model may use its layers in ways that others in their place do not know
        return False
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor) or found.shape != wanted.shape:
        return False
    return bool((found - wanted).abs().max() <= _ROUNDING * wanted.abs().max())


def _example(model: nn.Module) -> Tensor:
    configuration = getattr(model, "pretrained_cfg", None) or {}
    if "input_size" not in configuration:
        raise InputError(f"{type(model).__name__} does not say what it takes; give compile_sparse an example batch.")
    return torch.rand(_BATCH, *configuration["input_size"])


def _graph(model: nn.Module, images: Tensor) -> fx.GraphModule | None:
    """The model as a graph without batch normalisation, if that gives the same outputs, for one image too."""
    graph = folded(model)
    same = graph is not None and all(_agrees(graph, batch, model(batch)) for batch in (images[:2], images[:1]))
    return graph if same else None


def _compile_chains(graph: fx.GraphModule, images: Tensor, measure: bool) -> fx.GraphModule:
    shapes, densest = shapes_of(graph, images), 1.0 if measure else DENSEST
    for node in list(graph.graph.nodes):
        layer = module_of(graph, node)
        if not isinstance(layer, nn.Conv2d) or not can_be_sparse(layer, densest) or len(node.args) != 1 or node.kwargs:
            continue
        chain = chain_from(graph, node, shapes)
        sparse = sparse_layer(layer, activation_name(chain.activation) or "none")
        inputs = [shapes[n] for n in (node.args[0], chain.added) if isinstance(n, fx.Node)]
        if not measure or is_faster(sparse, _Dense(layer, chain), inputs):
            shapes[put_chain(graph, chain, sparse)] = shapes[chain.last]
    return recompiled(graph)


class _Dense(nn.Module):
    """A chain as torch runs it."""

    def __init__(self, layer: nn.Module, chain: Chain):
        super().__init__()
        self.layer, self.activation = layer, chain.activation

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        y = self.layer(x)
        return self.activation(y if added is None else y + added)


def _compile_modules(model: nn.Module, images: Tensor, measure: bool) -> nn.Module:
    """Every layer that can be sparse replaced, or every one that gains by it."""
    shapes = _input_shapes(model, images, 1.0 if measure else DENSEST)
    places = defaultdict(list)  # one layer may stand in several
    for parent in model.modules():
        for name, layer in parent._modules.items():
            if layer is not None and layer in shapes:
                places[layer].append((parent, name))
    for layer, found in places.items():
        sparse = sparse_layer(layer)
        if not measure or is_faster(sparse, layer, [shapes[layer]]):
            for parent, name in found:
                setattr(parent, name, sparse)
    return model


def _in_parts(model: nn.Module, images: Tensor, measure: bool) -> nn.Module:
    """The model a few images at a time, where it gives the same outputs: in as small parts as gain by it."""
    if not measure or not any(isinstance(module, SparseConv2d) for module in model.modules()):
        return model
    best = InParts(model, max(1, _PART // images[0].numel()))
    for count in (4, 2):
        parts = InParts(model, count)
        if not _agrees(parts, images, model(images)):
            return model
        if count < len(images) and is_faster(parts, best, [images.shape]):
            best = parts
    return best


def _input_shapes(model: nn.Module, images: Tensor, densest: float) -> dict[nn.Module, torch.Size]:
    """What each layer gets when the model sees the images; layers that are not called as modules are missing."""
    shapes: dict[nn.Module, torch.Size] = {}

    def note(layer: nn.Module, inputs: tuple) -> None:
        known = len(inputs) == 1 and isinstance(inputs[0], Tensor)
        if known and (inputs[0].dim() == 4 or isinstance(layer, nn.Linear)):
            shapes[layer] = inputs[0].shape

    layers = [module for module in model.modules() if can_be_sparse(module, densest) or can_pool(module)]
    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return shapes
