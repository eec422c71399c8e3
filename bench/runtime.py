"""The measurements of `make bench-runtime`: the sparse runtime against others, and bench/results/runtime.json.

    python bench/runtime.py --deepsparse ENVIRONMENT/bin/python     (about an hour, on a machine that does nothing else)
    python bench/runtime.py --only deit-tiny --rounds 3

Random weights and masks will do: the time depends on neither. All runtimes take turns, each in a process of its own
with the same number of threads (src/secateur/benchmark). Each run is written as soon as it is there; the table is made
from the file, so that --only adds to what was measured before.
"""

import argparse
import itertools
import json
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import sparse_product
from rich.console import Console as Printer
from rich.table import Table
from timing import ratio

from secateur.benchmark import Plan, choose, compare_runtimes, describe_machine, random_candidates
from secateur.cli.console import Console
from secateur.report import save_speeds

RESULTS = Path(__file__).parent / "results" / "runtime.json"
FIGURE = Path(__file__).parents[1] / "docs" / "img" / "speed.svg"


@dataclass(frozen=True)
class Run:
    """One architecture with random masks."""

    model: str
    sparsities: tuple[float, ...]
    batch_sizes: tuple[int, ...]


RUNS = {
    "deit-small": Run("deit_small_patch16_224", (0.5, 0.75, 0.9), (64, 1)),
    "deit-tiny": Run("deit_tiny_patch16_224", (0.5, 0.75, 0.9), (64, 1)),
    "resnet50": Run("resnet50", (0.9,), (16,)),
}
OTHERS = ("product", "spinning")  # the sparse product against its bounds; what threads that spin take from others


def main() -> None:
    options = parse()
    runtimes, left_out = choose([], options.deepsparse)
    plan = Plan(options.threads or os.cpu_count() or 1, options.rounds)
    found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"runs": {}}
    with Console() as console:
        for name in options.only or [*RUNS, *OTHERS]:
            machine = describe_machine(plan.threads)
            if name == "product":
                shapes = itertools.product(sparse_product.SHAPES, sparse_product.DENSITIES)
                measured = {"rows": [sparse_product.measure(*shape, density) for shape, density in shapes]}
            elif name == "spinning":
                measured = {"rows": spinning(runtimes, plan, console)}
            else:
                run = RUNS[name]
                candidates = random_candidates(run.model, run.sparsities)
                measured = compare_runtimes(candidates, runtimes, run.batch_sizes, plan, track=console.track)
                measured["left_out"] |= left_out
            measured |= {
                "machine": machine,
                "plan": asdict(plan),
                "command": " ".join(["bench/runtime.py", *sys.argv[1:]]),
            }
            found["runs"][name] = measured
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    show(found["runs"])
    rows = [row for name in ("deit-small", "deit-tiny") for row in found["runs"].get(name, {}).get("rows", ())]
    if rows:
        save_speeds({"rows": rows}, FIGURE)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--deepsparse", default=os.environ.get("DEEPSPARSE"), help="Python of an environment that has it"
    )
    parser.add_argument("--only", nargs="+", choices=[*RUNS, *OTHERS], help="default: all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, help="default: all cores")
    return parser.parse_args()


def spinning(runtimes: list, plan: Plan, console: Console) -> list[dict]:
    """DeiT-Tiny, dense: each runtime's time with threads that spin while idle, against threads that sleep."""
    candidates = random_candidates("deit_tiny_patch16_224", [])
    taken: dict[bool, dict[str, list[float]]] = {}
    for spin in (False, True):
        rows = compare_runtimes(candidates, runtimes, [1], replace(plan, spin=spin), track=console.track)["rows"]
        taken[spin] = {row["runtime"]: row["rounds"] for row in rows}
    both = [name for name in taken[False] if name in taken[True]]
    return [{"runtime": name, "spinning over sleeping": ratio(taken[True][name], taken[False][name])} for name in both]


# --- the table --------------------------------------------------------------------------------------------------------


def show(runs: dict) -> None:
    printer = Printer(width=110 if not sys.stdout.isatty() else None, highlight=False)
    table = Table("measure", "ratio", "reach", "aim")
    for measure, value, reach, aim in measures(runs):
        table.add_row(
            measure, "–" if value is None else f"{value:.2f}", f"{reach:g}", "" if aim is None else f"{aim:g}"
        )
    printer.print(table)
    table = Table("model", "batch", "zeros", "runtime", "images/s", "p50 ms", "p95 ms", "speedup")
    for row in (row for name in RUNS for row in runs.get(name, {}).get("rows", ())):
        table.add_row(
            row["architecture"], str(row["batch"]), f"{100 * row['sparsity']:g} %", row["runtime"],
            f"{row['images_per_second']:.1f}", f"{row['p50_ms']:.1f}", f"{row['p95_ms']:.1f}", f"{row['speedup']:.2f}",
        )  # fmt: skip
    printer.print(table)
    for row in runs.get("product", {}).get("rows", ()):
        printer.print(
            f"sparse product {row['rows']} × {row['columns']}, {row['zeros']:.0%} zeros, one thread:"
            f" {max(row['of_multiply_adds'], row['of_loads']):.0%} of what its {row['bound_by']} allow"
        )
    for row in runs.get("spinning", {}).get("rows", ()):
        printer.print(
            f"{row['runtime']}: time with spinning threads {row['spinning over sleeping']:.2f} of that without"
        )


def measures(runs: dict) -> list[tuple[str, float | None, float, float | None]]:
    """(what, ratio or None where it was not measured, reach, aim)."""
    ours = [("deit-small", 64, s) for s in (0.5, 0.75, 0.9)] + [("deit-tiny", 64, s) for s in (0.5, 0.75, 0.9)]
    return [
        ("DeiT-S and DeiT-Ti, batch 64, 50/75/90 %: against DeepSparse, geometric mean",
         geometric_mean(against(runs, "deepsparse", *place) for place in ours), 1.3, 2),
        ("DeiT-S 90 %, batch 64: against the best dense runtime", speedup(runs, "deit-small", 64, 0.9), 3, 5),
        ("DeiT-S 75 %, batch 64: against the best dense runtime", speedup(runs, "deit-small", 64, 0.75), 2, None),
        ("DeiT-S 50 %, batch 64: against the best dense runtime", speedup(runs, "deit-small", 64, 0.5), 1, None),
        ("DeiT-Ti 50 %, batch 64: against the best dense runtime", speedup(runs, "deit-tiny", 64, 0.5), 1, None),
        ("DeiT-S 90 %, batch 1: against the best dense runtime", speedup(runs, "deit-small", 1, 0.9), 2, None),
        ("DeiT-Ti 90 %, batch 1: against the best dense runtime", speedup(runs, "deit-tiny", 1, 0.9), 2, None),
        ("ResNet-50 90 %, batch 16: against the best dense runtime", speedup(runs, "resnet50", 16, 0.9), 2, None),
    ]  # fmt: skip


def row_of(runs: dict, run: str, batch: int, sparsity: float, runtime: str) -> dict | None:
    wanted = (batch, sparsity, runtime)
    rows = runs.get(run, {}).get("rows", ())
    return next((row for row in rows if (row["batch"], row["sparsity"], row["runtime"]) == wanted), None)


def speedup(runs: dict, run: str, batch: int, sparsity: float) -> float | None:
    """Of this package's runtime against the fastest dense one."""
    row = row_of(runs, run, batch, sparsity, "secateur")
    return row and row["speedup"]


def against(runs: dict, runtime: str, run: str, batch: int, sparsity: float) -> float | None:
    """How many times faster than another runtime on the same model, in the same rounds."""
    own, other = (row_of(runs, run, batch, sparsity, name) for name in ("secateur", runtime))
    return ratio(other["rounds"], own["rounds"]) if own and other else None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """None where one is missing."""
    found = list(values)
    return None if None in found else math.exp(sum(map(math.log, found)) / len(found))


if __name__ == "__main__":
    main()
