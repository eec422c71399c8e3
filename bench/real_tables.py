"""The tables and the figure of docs/results.md from the rows that bench/real_images.py wrote."""

import argparse
import json
from pathlib import Path

import numpy as np

from secateur.report import save_curve
from secateur.report.results import NAMES

PAIRS = [  # the paper's orderings: the first is to do better than the second
    ("cap:damping=0.1", "woodfisher"),
    ("cap:damping=0.1", "cap"),
    ("cap", "woodfisher"),
    ("cap:uniform:damping=0.1", "woodfisher"),
    ("woodfisher", "obd"),
    ("woodfisher", "magnitude"),
    ("obd", "grw"),
    ("grw", "magnitude"),
    ("magnitude", "magnitude:uniform"),
    ("cap:damping=0.1", "cap:uniform:damping=0.1"),
    ("cap:uniform:damping=0.1", "magnitude:uniform"),
    ("cap:damping=0.1", "fast_cap"),
    ("magnitude", "magnitude, not recalibrated"),
]
SHOWN = ("magnitude", "magnitude:uniform", "grw", "obd", "woodfisher", "cap", "cap:uniform")  # in the figure


def kind(row: dict) -> str:
    """The method with its allocation and options, and whether batch normalisation was left as it was."""
    return row["label"] if row["options"].get("recalibrated", True) else f"{row['label']}, not recalibrated"


def words(name: str) -> str:
    method, *options = name.split(":")
    method, comma, rest = method.partition(",")
    return ", ".join([NAMES.get(method, method) + comma + rest, *options])


def accuracies(document: dict) -> list[str]:
    """Top-1 of every method at every sparsity; the best of a column in bold."""
    found = {(kind(row), row["sparsity"]): row["top1"] for row in document["rows"]}
    names, sparsities = list(dict.fromkeys(name for name, _ in found)), sorted({s for _, s in found})
    best = {s: max(top1 for (_, t), top1 in found.items() if t == s) for s in sparsities}
    lines = table_head("", [f"{100 * s:g} %" for s in sparsities])
    for name in names:
        cells = [found.get((name, s)) for s in sparsities]
        texts = [
            "–" if c is None else f"**{c:.1f}**" if c == best[s] else f"{c:.1f}"
            for c, s in zip(cells, sparsities, strict=True)
        ]
        lines.append(f"| {words(name)} | {' | '.join(texts)} |")
    return lines


def differences(document: dict) -> list[str]:
    """Points of top-1 by which the first of a pair is ahead, with the standard error of that over the images."""
    count = document["data"]["images"]
    hits = {(kind(row), row["sparsity"]): bits(row["hits"], count) for row in document["rows"]}
    sparsities = sorted({s for _, s in hits})
    lines = table_head("ahead by", [f"{100 * s:g} %" for s in sparsities])
    for one, other in PAIRS:
        cells = [paired(hits.get((one, s)), hits.get((other, s))) for s in sparsities]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {words(one)} over {words(other)} | {' | '.join(cells)} |")
    return lines


def bits(text: str, count: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:count].astype(float)


def paired(one: np.ndarray | None, other: np.ndarray | None) -> str:
    if one is None or other is None:
        return "–"
    ahead = 100 * (one - other)
    return f"{ahead.mean():+.1f} ± {ahead.std(ddof=1) / len(ahead) ** 0.5:.1f}"


def table_head(corner: str, columns: list[str]) -> list[str]:
    return [f"| {corner} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]


def drawn(document: dict) -> dict:
    """What the figure shows: the methods that the paper's figure shows."""
    return document | {"rows": [row for row in document["rows"] if kind(row) in SHOWN]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--figure", type=Path, help=".svg or .png to draw of the first of them")
    args = parser.parse_args()
    for file in args.results:
        document = json.loads(file.read_text())
        dense, data = document["dense"], document["data"]
        print(f"\n{document['model']['name']}, {data['images']:,} images, dense {dense['top1']:.1f} %\n")
        print("\n".join([*accuracies(document), "", *differences(document)]))
    if args.figure:
        save_curve(drawn(json.loads(args.results[0].read_text())), args.figure)


if __name__ == "__main__":
    main()
