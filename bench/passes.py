"""Per-sample gradients folded into the Fisher, against the plain forward and backward pass, on DeiT-S at 224 pixels."""

import resource
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F
from timing import in_turns, ratio

from secateur.fisher import BlockFisher
from secateur.gradients import stream_gradients
from secateur.layers import select_layers
from secateur.resources import Resources

BLOCK = 192


def folded(precision: str, images: int = 32, rounds: int = 2) -> dict:
    """Batches of random images; the Fishers of all prunable weights are there and stay."""
    torch.manual_seed(0)
    model = timm.create_model("deit_small_patch16_224", pretrained=False).eval()
    batch = torch.randn(images, 3, 224, 224), torch.randint(0, 1000, (images,))
    weights, means = select_layers(model), Resources(precision=precision)
    stores = {name: BlockFisher(weight.size, BLOCK) for name, weight in weights.items()}

    def fold() -> None:
        stream_gradients(model, two_alike(batch), weights, lambda n, g: stores[n].add(g), resources=means)

    times = in_turns({"plain": lambda: plain(model, batch, means), "folded": fold}, rounds)
    times["folded"] = [seconds / 2 for seconds in times["folded"]]  # of two batches, which share the choice of the rule
    return {
        "measure": f"pass with the Fisher against the plain pass, DeiT-S, {precision}",
        "ratio": ratio(times["folded"], times["plain"]),
        "reach": 1.6,
        "aim": 1.3,
        "images": images,
        "seconds": times,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def two_alike(batch) -> list:
    return [batch, batch]


def plain(model, batch, means: Resources) -> Callable | None:
    """The pass that training makes: gradients of all parameters, summed over the images."""
    images, labels = batch
    model.requires_grad_(True)
    with means.autocast(torch.device("cpu")):
        loss = F.cross_entropy(model(images), labels)
    loss.backward()
    model.zero_grad(set_to_none=True)
    return None
