"""The models that are timed: each as the files that runtimes read, with what it answers on the images.

Dense runtimes are timed on the dense twin: the same layers, with random numbers where the zeros were, since their time
does not depend on values. Random models need no weights at all.
"""

import io
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import timm
import torch
from torch import nn

from ..checkpoint import save
from ..errors import InputError, nearest
from ..export import export_onnx
from ..layers import prunable_weights, select_layers
from ..models import input_shape, load_model
from ..timm_config import model_name

DENSE = "dense"


@dataclass(frozen=True)
class Candidate:
    """A model that can be timed."""

    label: str
    architecture: str
    sparsity: float  # of the linear layers and convolutions that the default rule prunes
    make: Callable[[], nn.Module]


@dataclass(frozen=True)
class Prepared:
    """A candidate on the disk; `reference` is what torch answers on the first images."""

    candidate: Candidate
    files: dict[str, Path]  # by what runtimes read
    reference: np.ndarray


def random_candidates(name: str, sparsities: Sequence[float], seed: int = 0) -> list[Candidate]:
    """The architecture with random weights: dense, and with random masks of the sparsities."""
    if not timm.is_model(name):
        raise InputError(f"timm has no model {name!r}.{nearest(name, timm.list_models())}")
    labels = {f"{100 * sparsity:g} %": sparsity for sparsity in sparsities}
    return [
        Candidate(DENSE, name, 0.0, lambda: _random_model(name, 0.0, seed)),
        *(
            Candidate(label, name, sparsity, lambda sparsity=sparsity: _random_model(name, sparsity, seed))  # type: ignore[misc]
            for label, sparsity in labels.items()
        ),
    ]


def saved_candidates(names: Sequence[str]) -> list[list[Candidate]]:
    """Those of folders and other names that `load_model` takes: for every architecture its dense twin, then they."""
    groups: dict[str, list[Candidate]] = {}
    for name in dict.fromkeys(names):
        model = load_model(name)
        kind = model_name(model)
        group = groups.setdefault(kind, [Candidate(DENSE, kind, 0.0, lambda name=name: _twin(name))])  # type: ignore[misc]
        group.append(Candidate(name, kind, sparsity_of(model), lambda name=name: load_model(name)))  # type: ignore[misc]
    return list(groups.values())


def prepare(candidate: Candidate, images: np.ndarray, folder: Path, kinds: Collection[str]) -> Prepared:
    """Write the model into a new folder, with the kinds of files in it, and ask torch for its answers on the images."""
    model = candidate.make()
    save(model, {}, folder)
    files = {"folder": folder, "onnx": folder / "model.onnx", "older onnx": folder / "older.onnx"}
    if "onnx" in kinds:
        export_onnx(model, files["onnx"])
    if "older onnx" in kinds:
        _export_older(model, files["older onnx"])
    with torch.inference_mode():
        outputs = model(torch.from_numpy(images))
    return Prepared(candidate, files, getattr(outputs, "logits", outputs).numpy())


def random_images(shape: Sequence[int], batch: int, seed: int = 0) -> np.ndarray:
    """(batch, channels, height, width)."""
    return np.random.default_rng(seed).standard_normal((batch, *shape), dtype=np.float32)


def sparsity_of(model: nn.Module) -> float:
    """The fraction of zeros among the weights that the default rule prunes."""
    weights = [weight.parameter for weight in select_layers(model).values()]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


def shape_of(candidate: Candidate) -> tuple[int, int, int]:
    """(channels, height, width) of its images."""
    return input_shape(candidate.make())


def _random_model(name: str, sparsity: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = timm.create_model(name, pretrained=False).eval()
    for weight in select_layers(model).values():
        zeros = torch.randperm(weight.size)[: round(sparsity * weight.size)]
        weight.parameter.data.view(-1)[zeros] = 0.0
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)  # timm starts some at 0, which would take a whole branch out of the graph
    return model


def _export_older(model: nn.Module, file: Path) -> None:
    """ONNX as of 2022, with layer norms in pieces: what DeepSparse knows best, and runs half as fast again."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch, that this exporter is old
        torch.onnx.export(
            model, (torch.zeros(2, *input_shape(model)),), str(file), dynamo=False, opset_version=16,
            input_names=["images"], output_names=["logits"],
            dynamic_axes={"images": {0: "batch"}, "logits": {0: "batch"}},
        )  # fmt: skip


def _twin(name: str) -> nn.Module:
    """The model of that name with random numbers in the place of zeros."""
    model = load_model(name)
    generator = torch.Generator().manual_seed(0)
    for weight in prunable_weights(model).values():
        values = weight.parameter.data
        scale = values[values != 0].std(correction=0).nan_to_num(0.02)
        filled = torch.randn(values.shape, generator=generator) * scale
        values.copy_(torch.where(values == 0, filled, values))
    return model
