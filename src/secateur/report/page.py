"""report.html: one file that opens anywhere, with no network, from the dictionary that is kept as report.json."""

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from ..files import write_atomically
from ..strict_json import json_bytes, read_json
from .charts import accuracy_chart, percent, prediction_chart
from .results import METRICS, Metric, Point, Series, check, gather, metric_of, value_text

SAFE_LINK = re.compile(r"(?!.*\.\.)[\w.-]+(/[\w.-]+)*")  # a path below the report, nothing with a scheme
WIDE, NARROW, HALF = (1040, 430), (380, 330), (500, 380)
CLOSE_UP = 5.0  # points below the dense accuracy


@dataclass(frozen=True)
class Cell:
    """A layer's zeros in one run: the text, and how far it keeps more (k1..k4) or less (z1..z4) than asked."""

    text: str
    shade: str


def write_report(results: dict[str, Any], folder: str | Path) -> Path:
    """Write report.json and report.html into a folder that exists; returns the path of the page.

    Raises:
        InputError: when a field of the results is missing or of another type, or the folder cannot be written.
    """
    folder = Path(folder)
    plain = json.loads(json_bytes(check(results)))  # the page shows what the file says
    page = render(plain).encode()
    write_atomically(folder / "report.json", json_bytes(plain))
    write_atomically(folder / "report.html", page)
    return folder / "report.html"


def read_results(folder: str | Path) -> dict[str, Any]:
    """The results a folder keeps as report.json.

    Raises:
        InputError: when the file is missing, damaged, or lacks a field.
    """
    return check(read_json(Path(folder) / "report.json"))


def render(results: dict[str, Any]) -> str:
    """The whole page."""
    series, metric = gather(results), metric_of(results)
    dense, dense_loss = results["dense"][metric.field], results["dense"].get("loss")
    lowest = min((row[metric.field] for row in results["rows"]), default=dense)
    close = CLOSE_UP if dense - lowest > 2 * CLOSE_UP else None
    charts = {
        "accuracy": [accuracy_chart(series, dense, *size, metric=metric) for size in (WIDE, NARROW)],
        "close": [accuracy_chart(series, dense, *size, close, metric) for size in (HALF, NARROW)] if close else [],
        "prediction": [],
    }
    if dense_loss is not None:
        charts["prediction"] = [c for size in (HALF, NARROW) if (c := prediction_chart(series, dense_loss, *size))]
    return template("report.html.j2").render(
        results=results,
        series=series,
        charts=charts,
        metric=metric,
        dense=dense,
        headline=headline(series, dense, metric),
        table=result_table(series, dense, metric),
        heat_columns=[(s, [p for p in s.points if p.layers]) for s in series if any(p.layers for p in s.points)],
        heat_rows=heat_map(series),
        seeded=any(len(point.rows) > 1 for s in series for point in s.points),
        close_up=CLOSE_UP,
    )


def headline(series: list[Series], dense: float, metric: Metric = METRICS["top1"]) -> str:
    """One sentence: how many zeros the best method bears within one point of the dense model."""
    found = [(p.sparsity, p.value(metric.field), s.label) for s in series for p in s.points]
    within = [(sparsity, value.mean, label) for sparsity, value, label in found if value and value.mean >= dense - 1]
    if not within:
        return f"No run stays within one point of the dense {percent(round(dense, 1) / 100)}."
    sparsity, best, label = max(within)
    kept, full = (percent(round(value, 1) / 100) for value in (best, dense))
    return f"{label} keeps {kept} {metric.name} with {percent(sparsity)} zeros; the dense model has {full}."


def result_table(series: list[Series], dense: float, metric: Metric) -> list[list[dict[str, Any]]]:
    """Rows grouped by sparsity, best accuracy first."""
    groups = []
    for sparsity in sorted({point.sparsity for s in series for point in s.points}):
        points = [(s, point) for s in series for point in s.points if point.sparsity == sparsity]
        rows = [_table_row(s, point, dense, metric) for s, point in points]
        groups.append(sorted(rows, key=lambda row: -row["mean"]))
    return groups


def _table_row(series: Series, point: Point, dense: float, metric: Metric) -> dict[str, Any]:
    value = point.value(metric.field)
    assert value is not None  # checked with the results
    links = [row.get("checkpoint") for row in point.rows]
    return {
        "series": series,
        "mean": value.mean,
        "sparsity": series.pattern or percent(point.sparsity),
        "achieved": value_text(point.value("achieved"), 2, 100),
        "main": value_text(value, 2),
        "change": f"{value.mean - dense:+.2f}".replace("-", "−"),
        "second": value_text(point.value(metric.second), 2),
        "loss": value_text(point.value("loss"), 4),
        "predicted": value_text(point.value("predicted_loss_increase"), 4),
        "seconds": value_text(point.value("seconds"), 1).split(" ")[0],
        "runs": len(point.rows),
        "checkpoints": [(link, bool(SAFE_LINK.fullmatch(link))) for link in links if link],
    }


def heat_map(series: list[Series]) -> list[tuple[str, list[Cell]]]:
    """Layer → a cell for every series and sparsity that knows its layers."""
    points = [point for s in series for point in s.points if point.layers]
    names = dict.fromkeys(name for point in points for name in point.layers)
    return [(name.removesuffix(".weight"), [_cell(point, name) for point in points]) for name in names]


def _cell(point: Point, name: str) -> Cell:
    if name not in point.layers:
        return Cell("", "")
    zeros = point.layers[name]
    text = f"{100 * zeros:.1f}" if 0.985 <= zeros < 1 else f"{100 * zeros:.0f}"
    ratio = math.log2(max(1 - zeros, 1e-6) / max(1 - point.sparsity, 1e-6))  # 1: keeps twice as many as asked
    step = min(4, round(abs(ratio) * 2))
    return Cell(text, f"{'k' if ratio > 0 else 'z'}{step}" if step else "")


def thousands(value: Any) -> str:
    """1215946 → 1 215 946; what is no large whole number stays."""
    large = isinstance(value, int) and not isinstance(value, bool) and abs(value) > 9999
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}") if large else str(value)


@cache
def template(name: str) -> jinja2.Template:
    """A page of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names come from anywhere
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "thousands": thousands}
    return environment.get_template(name)
