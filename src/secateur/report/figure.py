"""The one picture of a README: accuracy against sparsity, as SVG or PNG."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import write_atomically
from .charts import depth, percent, spread_labels
from .results import Metric, gather, metric_of

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b4508c", "#c78a00", "#3d9bd1", "#7a6a58", "#555555")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, FAINT = "#22262b", "#8a9199"
POINTS = 190.0  # height of the plotting area, in which labels are moved apart


def save_curve(results: dict[str, Any], path: str | Path) -> None:
    """Draw accuracy against sparsity for every method, with the dense line and labels beside the lines.

    What was asked for as N:M is drawn where there is nothing else: it makes no line.

    Args:
        path: ends in .svg or .png.
    Raises:
        InputError: for another ending, results that cannot be shown, or a file that cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure  # not pyplot: no state, no window

    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("svg", "png"):
        raise InputError(f"The curve is drawn as .svg or .png, not as {path.suffix or 'a file without ending'!r}.")
    series, metric = gather(results), metric_of(results)
    series = [s for s in series if not s.pattern] or series
    with mpl.rc_context({"svg.hashsalt": "secateur", "font.family": "sans-serif", "font.size": 9.5}):
        figure = Figure(figsize=(7.2, 3.7), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        _draw(axes, series, results["dense"][metric.field], metric)
        data = io.BytesIO()
        figure.savefig(data, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, data.getvalue())


def _draw(axes, series, dense: float, metric: Metric) -> None:
    axes.axhline(dense, color=FAINT, linewidth=1, linestyle=(0, (1, 2)))
    axes.annotate(f"dense {dense:.1f} %", (0, dense), (4, 4), xycoords=("axes fraction", "data"),
                  textcoords="offset points", color=FAINT)  # fmt: skip
    ends = []
    for s in series:
        style = {"color": PALETTE[s.index % 8], "marker": MARKERS[s.index % 8], "linestyle": "--" if s.dashed else "-"}
        values = [(point.sparsity, value) for point in s.points if (value := point.value(metric.field))]
        axes.errorbar(
            [sparsity for sparsity, _ in values],
            [value.mean for _, value in values],
            yerr=[[v.mean - v.low for _, v in values], [v.high - v.mean for _, v in values]],
            markersize=5, linewidth=1.8, capsize=2, elinewidth=1, **style,
        )  # fmt: skip
        ends.append((values[-1][0], values[-1][1].mean, s.label, style["color"]))
    axes.set_xscale("function", functions=(np.vectorize(depth, otypes=[float]), lambda depth: 1 - 2.0**-depth))
    ticks = sorted({point.sparsity for s in series for point in s.points}) or [0.0]
    axes.set_xlim(*_margins(ticks))
    low, high = axes.get_ylim()
    heights = [(high - y) / (high - low) * POINTS for _, y, _, _ in ends]
    for (x, y, label, color), height in zip(ends, spread_labels(heights, 0, POINTS), strict=True):
        moved = (high - y) / (high - low) * POINTS - height
        axes.annotate(label, (x, y), (9, moved), textcoords="offset points", color=color, va="center", weight="bold")
    axes.set_xticks(ticks, [percent(tick) for tick in ticks])
    axes.tick_params(colors=INK, length=0)
    axes.set_xlabel("zeros among the prunable weights", color=INK)
    axes.set_ylabel(f"{metric.title}, %", color=INK)
    axes.grid(axis="y", color="#e6e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def _margins(ticks: list[float]) -> tuple[float, float]:
    """A little room on the left, and on the right enough for the labels."""
    first, last = depth(ticks[0]), depth(ticks[-1])
    span = max(last - first, 1.0)
    return 1 - 2 ** -(first - 0.05 * span), 1 - 2 ** -(last + 0.24 * span)
