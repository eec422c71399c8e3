"""The whole CAP step on DeiT: gradients, Fisher, scores, compensation; how long each takes and what it holds.

    python bench/whole.py --model deit_small_patch16_224 --samples 4096 --memory 12GiB --precision auto

Random images and weights will do: the time depends on neither.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import timm
import torch
from timing import machine, peak_bytes

import secateur
from secateur.cli.console import Console


class RandomImages:
    """Batches that are the same on every pass and take no memory between them."""

    def __init__(self, samples: int, batch_size: int):
        self.samples, self.batch_size = samples, batch_size

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(len(self)):
            generator = torch.Generator().manual_seed(number)
            count = min(self.batch_size, self.samples - number * self.batch_size)
            images = torch.randn(count, 3, 224, 224, generator=generator)
            yield images, torch.randint(0, 1000, (count,), generator=generator)


class Phases:
    """A track that keeps the seconds of each phase, and shows its bars."""

    def __init__(self, console: Console):
        self.console, self.seconds = console, {}

    def __call__(self, iterable, description, total=None):
        start = time.perf_counter()
        yield from self.console.track(iterable, description, total)
        self.seconds[description] = self.seconds.get(description, 0.0) + time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--sparsity", type=float, default=0.75)
    parser.add_argument("--memory", default="12GiB")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    torch.manual_seed(0)
    model = timm.create_model(args.model, pretrained=False).eval().to(args.device)
    with Console() as console:
        phases = Phases(console)
        start = time.perf_counter()
        result = secateur.prune_(
            model, RandomImages(args.samples, args.batch_size), "cap", args.sparsity,
            resources=secateur.Resources(memory=args.memory, precision=args.precision), track=phases,
        )  # fmt: skip
        seconds = time.perf_counter() - start
    found = {
        "measure": f"whole CAP step, {args.model}, N={args.samples}, B=192",
        "settings": {**vars(args), "out": None},
        "weights": result.total,
        "achieved": result.achieved,
        "seconds": seconds,
        "phases": phases.seconds,
        "peak_bytes": peak_bytes(),
        "machine": machine(),
    }
    args.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
