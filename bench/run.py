"""The measurements of `make bench`: one table, and bench/results/kernels.json with the machine described.

Everything is a ratio inside one run, in which rivals take turns.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import accuracy
import kernels
import passes
from rich.console import Console
from rich.table import Table
from timing import machine

from secateur.heap import keep_freed_memory

RESULTS = Path(__file__).parent / "results"


MEASURES: dict[str, Callable[[], list]] = {
    "ratios": lambda: [
        kernels.cap_scores(in_place=False),
        kernels.cap_scores(in_place=True),
        kernels.fisher_sum(),
        kernels.inversion(),
    ],
    "passes": lambda: [passes.folded(precision) for precision in ("float32", "bfloat16")],
    "growth": kernels.growth,
    "accuracy": lambda: [{"scores, largest relative difference": kernels.agreement(), **accuracy.objectives()}],
}


def main() -> None:
    """All measures, or those that the command line names; each is written as soon as it is there."""
    keep_freed_memory()  # as the command does
    file = RESULTS / "kernels.json"
    found = json.loads(file.read_text()) if file.is_file() else {}
    for name in sys.argv[1:] or MEASURES:
        found |= {"machine": machine(), name: MEASURES[name]()}
        file.write_text(json.dumps(found, indent=2) + "\n")
    show(found["ratios"] + found["passes"], found["growth"], found["accuracy"][0])


def show(rows: list[dict], growth: list[dict], exact: dict) -> None:
    console = Console(width=110 if not sys.stdout.isatty() else None, highlight=False)
    table = Table("measure", "ratio", "reach", "aim")
    for row in rows:
        table.add_row(row["measure"], f"{row['ratio']:.2f}", f"{row['reach']:g}", f"{row['aim']:g}")
    console.print(table)
    table = Table("objective of the mask against float64", *(f"{100 * s:g} %" for s in exact["sparsities"]))
    for precision, ratios in exact["objective against float64"].items():
        table.add_row(f"{precision} passes", *(f"{r:.4f}" for r in ratios))
    console.print(table)
    table = Table("growth of the time of", "exponent", "expected")
    for row in growth:
        table.add_row(row["measure"], f"{row['exponent']:.2f}", f"{row['expected']:g}")
    console.print(table)


if __name__ == "__main__":
    main()
