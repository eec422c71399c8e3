"""Whole models with random zeros: compile_sparse against torch and openvino, taking turns in one run.

    python bench/encoder.py [--models deit_small_patch16_224 …] [--batches 64 1] [--rounds 5] [--out FILE]

Speed does not depend on which weights are zero beyond chance, so masks are random, the same share in every linear layer
or convolution but the first and the last. openvino, where it is installed, runs the dense model in float32, and once
more in the precision it takes by itself.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from timing import in_turns, machine, ratio
from torch import nn

import secateur

SPARSITIES = (0.5, 0.75, 0.9)
DENSE = ("torch", "openvino", "openvino, own precision")


def model_with_zeros(name: str, sparsity: float) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    layers = [m for m in model.modules() if type(m) is nn.Linear or (type(m) is nn.Conv2d and m.groups == 1)]
    with torch.no_grad():
        for layer in layers:
            first = isinstance(layer, nn.Conv2d) and layer.in_channels <= 3
            if not first and layer is not model.get_classifier():
                layer.weight.mul_(torch.rand_like(layer.weight) >= sparsity)
    return model


def openvino_run(model: nn.Module, images: torch.Tensor, precision: str | None) -> Callable[[], object] | None:
    """The dense model in openvino on torch's number of threads; None where openvino is not installed."""
    try:
        import openvino
    except ImportError:
        return None
    converted = openvino.convert_model(model, example_input=images[:1])
    converted.reshape(list(images.shape))
    options = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
    options |= {"PERFORMANCE_HINT": "LATENCY" if len(images) == 1 else "THROUGHPUT"}
    options |= {} if precision is None else {"INFERENCE_PRECISION_HINT": precision}
    request = openvino.Core().compile_model(converted, "CPU", options).create_infer_request()
    return lambda: request.infer({0: images.numpy()})


def compare(name: str, batch: int, rounds: int, slow: list[str], sparsities: tuple[float, ...] = SPARSITIES) -> dict:
    """{"model", "batch", "images_per_second": {rival: median}, "against_openvino": {rival: median of ratios}, …}"""
    images = torch.randn(batch, 3, 224, 224)
    dense = model_with_zeros(name, 0.0)
    rivals: dict[str, Callable[[], object]] = {"torch": lambda: dense(images)} if "torch" in slow else {}
    for label, precision in (("openvino", "f32"), ("openvino, own precision", None)):
        run = openvino_run(dense, images, precision) if label in slow else None
        rivals |= {label: run} if run else {}
    for sparsity in sparsities:
        fast = secateur.compile_sparse(model_with_zeros(name, sparsity), images)
        rivals[f"secateur {sparsity:.0%}"] = lambda fast=fast: fast(images)
    with torch.inference_mode():
        times = in_turns(rivals, rounds)
    against = {
        f"against {dense}": {rival: ratio(times[dense], taken) for rival, taken in times.items()}
        for dense in DENSE
        if dense in times
    }
    speeds = {rival: batch / statistics.median(taken) for rival, taken in times.items()}
    return {"model": name, "batch": batch, "images_per_second": speeds, **against}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["deit_small_patch16_224", "deit_tiny_patch16_224"])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 1])
    parser.add_argument("--dense", nargs="+", default=list(DENSE), choices=DENSE, help="what to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    for name in options.models:
        for batch in options.batches:
            row = compare(name, batch, options.rounds, options.dense)
            found.append(row)
            for rival, speed in row["images_per_second"].items():
                ratios = ", ".join(
                    f"{r[rival]:.2f}× {a.removeprefix('against ')}" for a, r in row.items() if a[:3] == "aga"
                )
                print(f"{name}, batch {batch}, {rival}: {speed:.1f} images/s; {ratios}", flush=True)
            if options.out:
                options.out.write_text(json.dumps({"machine": machine(), "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
