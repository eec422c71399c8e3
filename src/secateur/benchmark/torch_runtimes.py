"""The runtimes that live in torch: plain, compiled by torch, and this package's own."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from ..models import load_model
from ..runtime import compile_sparse


def load(name: str, request: dict, images: np.ndarray) -> tuple[Callable[[], np.ndarray], str]:
    """A call without arguments that runs the model of a folder on the images, and the version of what runs it."""
    from .. import __version__

    torch.set_num_threads(request["threads"])
    model, given = load_model(request["model"]), torch.from_numpy(images)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    run: Callable = MAKERS[name](model, given)

    def call() -> np.ndarray:
        with torch.inference_mode():
            outputs = run(given)
        return getattr(outputs, "logits", outputs).numpy()

    return call, __version__ if name == "secateur" else torch.__version__


def _compiled_by_torch(model: nn.Module, images: torch.Tensor) -> Callable:
    from torch._inductor import config

    config.freezing = True  # weights are packed for the product, as the other runtimes do
    return torch.compile(model, dynamic=False)


def _compiled_sparse(model: nn.Module, images: torch.Tensor) -> Callable:
    return compile_sparse(model, images)


MAKERS: dict[str, Callable[[nn.Module, torch.Tensor], Callable]] = {
    "torch": lambda model, images: model,
    "torch.compile": _compiled_by_torch,
    "secateur": _compiled_sparse,
}
