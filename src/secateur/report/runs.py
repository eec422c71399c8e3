"""report.html of training runs: learning rate, zeros and accuracy against time, and what each change of the masks cost.

Made from the documents of runs (training/results.py), of one or of several side by side.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..files import write_atomically
from ..strict_json import json_bytes
from .charts import Chart, Line, Mark, chart_area, nice_ticks, scale
from .page import template
from .results import Series

Size = tuple[int, int]
WIDE, NARROW = (1040, 300), (380, 260)
EPOCH, RATE, ZEROS, LOSS, TOP1 = range(5)  # of an entry


def write_run_report(runs: Sequence[dict[str, Any]], folder: str | Path) -> Path:
    """Write report.json and report.html into a folder that exists; returns the path of the page."""
    folder = Path(folder)
    write_atomically(folder / "report.json", json_bytes({"format": 1, "runs": list(runs)}))
    write_atomically(folder / "report.html", render_runs(runs).encode())
    return folder / "report.html"


def render_runs(runs: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    series = [
        Series("run", "", "", index, False, (), run["label"], run["label"]) for index, run in enumerate(labelled(runs))
    ]
    curves = [
        ("Top-1 accuracy", lambda size: curve_chart(runs, series, TOP1, "top-1, %", size)),
        ("Zeros", lambda size: curve_chart(runs, series, ZEROS, "zeros, %", size, factor=100)),
        ("Learning rate", lambda size: curve_chart(runs, series, RATE, "learning rate, 10⁻³", size, factor=1e3)),
        ("Training loss", lambda size: curve_chart(runs, series, LOSS, "loss", size)),
    ]
    return template("runs.html.j2").render(
        runs=list(zip(runs, series, strict=True)),
        title=runs[0]["recipe"]["model"],
        charts=[(title, [draw(size) for size in (WIDE, NARROW)]) for title, draw in curves],
        drops=[drop_chart(runs, series, size) for size in (WIDE, NARROW)] if any(r["changes"] for r in runs) else [],
        models=side_by_side(runs),
        changes=[(run, one) for run, one in zip(runs, series, strict=True) if run["changes"]],
        heat_rows=[],
        heat_columns=[],
    )


def labelled(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs, told apart by a number where their labels are the same."""
    labels = [run["label"] for run in runs]
    return [
        run if labels.count(run["label"]) == 1 else {**run, "label": f"{run['label']} ({number})"}
        for number, run in enumerate(runs, 1)
    ]


def side_by_side(runs: Sequence[dict[str, Any]]) -> list[tuple[float, list[dict[str, Any] | None]]]:
    """For every sparsity that a run has written a model of, each run's, or nothing."""
    by_sparsity = [{round(model["sparsity"], 4): model for model in run["models"]} for run in runs]
    sparsities = sorted({sparsity for models in by_sparsity for sparsity in models})
    return [(sparsity, [models.get(sparsity) for models in by_sparsity]) for sparsity in sparsities]


def curve_chart(
    runs: Sequence[dict[str, Any]], series: Sequence[Series], column: int, title: str, size: Size, factor: float = 1.0
) -> Chart:
    """One column of the journals against the epoch."""
    points = [[(e[EPOCH], e[column] * factor) for e in run["entries"] if e[column] is not None] for run in runs]
    x, y, chart = _axes(points, "epoch", title, size)
    lines = [
        Line(one, [], [(x(epoch), y(value)) for epoch, value in own]) for one, own in zip(series, points, strict=True)
    ]
    return Chart(**chart, lines=lines)


def drop_chart(runs: Sequence[dict[str, Any]], series: Sequence[Series], size: Size) -> Chart:
    """What each change of the masks did to top-1, in points."""
    points = [[(c["epoch"], c["after"] - c["before"]) for c in run["changes"]] for run in runs]
    x, y, chart = _axes(points, "epoch", "change of top-1, points", size)
    lines = []
    for run, one, own in zip(runs, series, points, strict=True):
        marks = [
            Mark(x(epoch), y(drop), y(drop), y(drop), f"{one.label}, {change['what']}: {drop:+.2f} points")
            for (epoch, drop), change in zip(own, run["changes"], strict=True)
        ]
        lines.append(Line(one, marks, [(mark.x, mark.y) for mark in marks]))
    return Chart(**chart, lines=lines)


Axis = Callable[[float], float]


def _axes(points: Sequence[Sequence[tuple[float, float]]], x_title: str, y_title: str, size: Size):
    """The scales of all points together, and the chart without its lines."""
    area = chart_area(size[0], size[1], right=16)
    flat = [point for own in points for point in own] or [(0.0, 0.0)]
    ends = [epoch for epoch, _ in flat]
    values = [value for _, value in flat]
    x_ticks, y_ticks = nice_ticks(0, max(ends), 6), nice_ticks(min(values), max(values), 5)
    x = scale(0, max(*ends, x_ticks[-1]), area["left"], area["right"])
    y = scale(min(*values, y_ticks[0]), max(*values, y_ticks[-1]), area["bottom"], area["top"])
    chart: dict[str, Any] = {
        **area,
        "x_title": x_title,
        "y_title": y_title,
        "x_ticks": [(x(tick), f"{tick:g}") for tick in x_ticks],
        "y_ticks": [(y(tick), f"{tick:g}") for tick in y_ticks],
    }
    return x, y, chart


def mean_drop(run: dict[str, Any]) -> float | None:
    """What a change of the masks does to top-1 on average, in points."""
    drops = [change["after"] - change["before"] for change in run["changes"]]
    return sum(drops) / len(drops) if drops else None
