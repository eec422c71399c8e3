"""What the fast path costs in accuracy: masks from float32 or bfloat16 passes and the kernels, against float64.

The objective of a mask is ½ δᵀFδ with the float64 Fisher, after the best compensation, on real gradients of the bundled
model.
"""

import copy

import torch

import secateur
from secateur import Resources
from secateur.allocate import Group, allocate
from secateur.comparison import compare, contender
from secateur.curvature import collect
from secateur.fisher import to_blocks
from secateur.layers import select_layers
from secateur.solvers import BlockFishers, cap, obs
from secateur.triangles import unpack

LAYERS, BLOCK, DAMPING = ["blocks.1.attn.proj", "blocks.4.attn.proj"], 192, 0.01
FISHER = BlockFishers(BLOCK)
SPARSITIES = (0.25, 0.5, 0.65, 0.75, 0.85, 0.9, 0.95, 0.99)


def objectives(samples: int = 1024) -> dict:
    """{precision: [objective of its mask / objective of the float64 mask, for every sparsity]}."""
    model = secateur.load_model("bundled")
    batches = list(secateur.calibration_batches("bundled", model, samples=samples, seed=0))
    truth, blocks = copy.deepcopy(model).double(), {}
    doubled = [(images.double(), labels) for images, labels in batches]
    curvature = collect(truth, doubled, select_layers(truth, LAYERS), [FISHER])[FISHER]
    exact = {}
    for name, weight in select_layers(truth, LAYERS).items():
        blocks[name] = to_blocks(weight.matrix().reshape(-1), BLOCK)
        keep = torch.ones_like(blocks[name], dtype=torch.bool)
        exact[name], _ = cap._scores(blocks[name], keep, unpack(curvature[name]), damping_of(curvature))
    best = [objective(mask, blocks, curvature) for mask in masks(exact)]
    found = {}
    for precision in ("float32", "bfloat16"):
        weights = select_layers(model, LAYERS)
        fast = collect(model, batches, weights, [FISHER], resources=Resources(precision=precision))[FISHER]
        scores = {n: cap.scores(blocks[n].float(), fast[n], damping=damping_of(fast)) for n in weights}
        found[precision] = [objective(m, blocks, curvature) / b for m, b in zip(masks(scores), best, strict=True)]
    return {"sparsities": SPARSITIES, "samples": samples, "layers": LAYERS, "objective against float64": found}


def end_to_end(samples: int = 4096, images: int = 2000) -> list[dict]:
    """Mask overlap and top-1 of the whole bundled model after passes in bfloat16, beside those in float32."""
    rows = []
    dense = secateur.load_model("bundled")
    batches = secateur.calibration_batches("bundled", dense, samples=samples, seed=0)
    tests = list(secateur.evaluation_batches("bundled", dense, images, batch_size=250))
    results: dict[str, list] = {}
    for precision in ("float32", "bfloat16"):
        model = copy.deepcopy(dense)
        pairs = compare(
            model, batches, [contender("cap")], [0.5, 0.75, 0.9],
            lambda m: secateur.evaluate(m, tests), resources=Resources(precision=precision),
        )  # fmt: skip
        results[precision] = list(pairs)
    for exact, fast in zip(results["float32"], results["bfloat16"], strict=True):
        same = sum(int((exact.result.masks[n] == fast.result.masks[n]).sum()) for n in exact.result.masks)
        rows.append(
            {
                "sparsity": exact.result.sparsity,
                "equal mask entries": same / exact.result.total,
                "top-1": [exact.evaluation.top1, fast.evaluation.top1],
            }
        )
    return rows


def damping_of(curvature) -> float:
    return DAMPING * curvature.mean_diagonal


def masks(scores) -> list[dict]:
    total = sum(score.numel() for score in scores.values())
    return [allocate(scores, [Group(tuple(scores), round(sparsity * total))]) for sparsity in SPARSITIES]


def objective(keep, blocks, curvature) -> float:
    total = 0.0
    for name, weight in blocks.items():
        moved = obs.compensate(weight, keep[name], curvature[name], damping_of(curvature))
        damped = obs.loss_increase(moved - weight, curvature[name]).sum()
        total += float(damped) + 0.5 * damping_of(curvature) * float((moved - weight).square().sum())
    return total


if __name__ == "__main__":
    print(objectives(), *end_to_end(), sep="\n")
