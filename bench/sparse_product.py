"""The sparse product alone, on one thread, against what bounds it, all measured in the same run.

    python bench/sparse_product.py [--out bench/results/sparse_product.json]

Two bounds: the multiply-adds of the entries at the rate of multiply-adds from registers, and the loads they need at
the rate of loads from the L1 cache. Loads are counted from the packed matrix: offsets and weights by fours, the panel
once for each entry or shared column, the sums of a row once for each block of columns.
"""

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path

import torch
from timing import machine

from secateur import native
from secateur.runtime.packing import PANEL, pack

SHAPES = [(1152, 384), (384, 384), (1536, 384), (384, 1536)]  # the matrices of a block of DeiT-S
DENSITIES = [0.5, 0.25, 0.1]
ROUNDS = 15


def loads(packed) -> int:
    """Vector loads for one panel."""
    vectors = PANEL // native.core().lanes()
    tiles = packed.tiles.reshape(-1, 4)
    shared, singles = int(tiles[:, 2].sum()), tiles[:, 3]
    quads = int(((singles + 3) // 4).sum())
    return shared * (3 + 4 * vectors) + quads * 4 + int(singles.sum()) * 2 * vectors + len(tiles) * 2 * vectors


def rate(work) -> float:
    """What `work` returns, a second: the best of a few rounds."""
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        done = work()
        best = max(best, done / (time.perf_counter() - start))
    return best


def measure(rows: int, columns: int, density: float) -> dict:
    torch.manual_seed(0)
    weight = torch.randn(rows, columns) * (torch.rand(rows, columns) < density)
    packed, entries = pack(weight, None), int(weight.count_nonzero())
    x, y = torch.randn(4, columns, PANEL).numpy(), torch.empty(4, rows, PANEL).numpy()
    core, times, bounds = native.core(), [], {"multiply-adds": [], "loads": []}
    for _ in range(ROUNDS):  # the machine's best and the kernel take turns
        bounds["multiply-adds"].append(4 * entries * PANEL / rate(lambda: core.probe_multiply_adds(20_000)))
        bounds["loads"].append(4 * loads(packed) / rate(lambda: core.probe_loads(200)))
        start = time.perf_counter()
        packed.multiply_panels(x, y, 4, False, "none")
        times.append(time.perf_counter() - start)
    fractions = {
        name: statistics.median(b / t for b, t in zip(bound, times, strict=True)) for name, bound in bounds.items()
    }
    return {
        "rows": rows,
        "columns": columns,
        "zeros": 1 - density,
        "gflops": 2e-9 * 4 * entries * PANEL / statistics.median(times),
        "dense_equivalent_gflops": 2e-9 * 4 * rows * columns * PANEL / statistics.median(times),
        "of_multiply_adds": fractions["multiply-adds"],
        "of_loads": fractions["loads"],
        "bound_by": max(fractions, key=lambda name: fractions[name]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [measure(*shape, density) for shape, density in itertools.product(SHAPES, DENSITIES)]
    print("rows × columns, zeros: GFLOP/s (dense equivalent), of the multiply-adds' bound, of the loads' bound")
    for r in rows:
        speed = f"{r['gflops']:4.0f} ({r['dense_equivalent_gflops']:5.0f})"
        bounds = f"{r['of_multiply_adds']:4.0%}, {r['of_loads']:4.0%}; bound by {r['bound_by']}"
        print(f"{r['rows']:5} × {r['columns']:4}, {r['zeros']:4.0%}: {speed}, {bounds}")
    if options.out:
        options.out.write_text(json.dumps({"machine": machine() | {"threads": 1}, "products": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
