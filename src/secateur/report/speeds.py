"""Accuracy against throughput, as the paper draws it: a line over the sparsities of each sparse runtime.

Dense runtimes are dotted lines. Where no accuracy was measured the height is the fraction of zeros, and they are stars.
"""

import io
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import write_atomically
from .charts import percent
from .figure import FAINT, INK, MARKERS, PALETTE

FIELDS = {"architecture": str, "model": str, "runtime": str, "batch": int}
NUMBERS = ("sparsity", "images_per_second")


def save_speeds(results: dict[str, Any], path: str | Path, batch: int | None = None) -> None:
    """Draw the rows of `secateur bench`.

    Args:
        path: ends in .svg or .png.
        batch: the batch size to draw; the largest by default.
    Raises:
        InputError: for another ending, rows that cannot be shown, or a file that cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure  # not pyplot: no state, no window

    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("svg", "png"):
        raise InputError(f"The speeds are drawn as .svg or .png, not as {path.suffix or 'a file without ending'!r}.")
    rows = _rows(results, batch)
    with mpl.rc_context({"svg.hashsalt": "secateur", "font.family": "sans-serif", "font.size": 9.5}):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained", facecolor="white")
        _draw(figure.add_subplot(), rows)
        data = io.BytesIO()
        figure.savefig(data, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, data.getvalue())


def _rows(results: dict[str, Any], batch: int | None) -> list[dict[str, Any]]:
    """Those of one batch size, their fields checked."""
    rows = results.get("rows")
    if not isinstance(rows, list) or not rows:
        raise InputError("The speeds cannot be shown: there are no rows.")
    for i, row in enumerate(rows):
        wrong = [name for name, kind in FIELDS.items() if not isinstance(row.get(name), kind)]
        wrong += [name for name in NUMBERS if not isinstance(row.get(name), int | float)]
        if wrong:
            raise InputError(f"The speeds cannot be shown: rows[{i}].{wrong[0]} is {row.get(wrong[0])!r:.40}.")
    size = max(row["batch"] for row in rows) if batch is None else batch
    chosen = [row for row in rows if row["batch"] == size]
    if not chosen:
        raise InputError(f"The speeds cannot be shown: there is no batch of {size}.")
    return chosen


def _draw(axes, rows: list[dict[str, Any]]) -> None:
    measured = any(row.get("top1") is not None for row in rows)
    runtimes = list(dict.fromkeys(row["runtime"] for row in rows))
    architectures = list(dict.fromkeys(row["architecture"] for row in rows))
    for number, runtime in enumerate(runtimes):
        color = PALETTE[number % len(PALETTE)]
        for architecture in architectures:
            own = [row for row in rows if (row["runtime"], row["architecture"]) == (runtime, architecture)]
            dense = [row for row in own if row["model"] == "dense"]
            points = sorted((row for row in own if row["model"] != "dense"), key=lambda row: row["sparsity"])
            points = [row for row in points if not measured or row.get("top1") is not None]
            if points:
                marker = MARKERS[architectures.index(architecture) % len(MARKERS)]
                axes.plot(*_places(points, measured), color=color, marker=marker, markersize=5, linewidth=1.8)
            if dense and not measured:
                axes.plot(*_places(dense, measured), color=color, marker="*", markersize=9, linestyle="none")
            for row in dense if measured else ():
                axes.axvline(row["images_per_second"], color=color, linewidth=1, linestyle=(0, (1, 2)))
        axes.plot([], [], color=color, marker="o", markersize=5, linewidth=1.8, label=runtime)
    _dress(axes, rows, measured)


def _places(rows: list[dict[str, Any]], measured: bool) -> tuple[list[float], list[float]]:
    """Where the points of rows stand."""
    heights = [row["top1"] if measured else 100 * row["sparsity"] for row in rows]
    return [row["images_per_second"] for row in rows], heights


def _dress(axes, rows: list[dict[str, Any]], measured: bool) -> None:
    axes.set_xscale("log")
    low, high = (f(row["images_per_second"] for row in rows) for f in (min, max))
    axes.set_xlim(low / 1.25, high * 1.25)
    ticks = [
        base * 10**power
        for power in range(-3, 7)
        for base in (1, 2, 5)
        if low / 1.25 <= base * 10.0**power <= high * 1.25
    ]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"images per second, batch {rows[0]['batch']}", color=INK)
    axes.set_ylabel("top-1 accuracy, %" if measured else "zeros among the prunable weights, %", color=INK)
    if measured:
        for row in rows:
            if row.get("top1") is not None:
                axes.annotate(percent(round(row["sparsity"], 3)), (row["images_per_second"], row["top1"]), (5, 5),
                              textcoords="offset points", color=FAINT, fontsize=8)  # fmt: skip
    axes.legend(frameon=False, fontsize=8.5, loc="best")
    axes.tick_params(colors=INK, length=0)
    axes.grid(color="#e6e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
