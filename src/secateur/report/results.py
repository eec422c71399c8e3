"""The dictionary of a comparison, checked, and gathered into series.

A series is one method with one allocation and pattern; a point of it is all runs (seeds) at one sparsity.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..errors import InputError

NAMES = {
    "magnitude": "Magnitude",
    "cap": "CAP",
    "grw": "GrW",
    "woodfisher": "WoodFisher",
    "mfac": "M-FAC",
    "fast_cap": "Fast CAP",
    "obd": "OBD",
}
NUMBER, TEXT = (int, float), (str,)
HEAD = {"model": dict, "data": dict, "dense": dict, "rows": list}
ROW = {"method": TEXT, "allocation": TEXT, "sparsity": NUMBER}
OPTIONAL = {
    **dict.fromkeys(("achieved", "top5", "ap50", "loss", "predicted_loss_increase", "seconds", "seed"), NUMBER),
    "checkpoint": TEXT,
    "asked": (int, float, str),
    "layers": (list,),
    "options": (dict,),
}
LAYER = {"name": TEXT, "zeros": NUMBER, "total": NUMBER}


@dataclass(frozen=True)
class Metric:
    """The fields of a row that say how good a model is, in per cent, and what they are called."""

    field: str
    name: str
    title: str
    second: str
    second_name: str


METRICS = {
    "top1": Metric("top1", "top-1", "top-1 accuracy", "top5", "top-5"),
    "ap": Metric("ap", "AP", "average precision", "ap50", "AP50"),
}


def metric_of(results: dict[str, Any]) -> Metric:
    """What these results are measured in: top-1, unless they say something else."""
    return METRICS[results.get("metric", "top1")]


@dataclass(frozen=True)
class Value:
    """The mean over seeds, how far it scatters, and the extremes."""

    mean: float
    spread: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Value | None":
        found = [value for value in values if value is not None]
        if not found:
            return None
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        low, high = min(found), max(found)
        mean = min(max(statistics.fmean(found), low), high)  # equal values can have a mean beside them
        return cls(mean, spread, low, high)


def value_text(value: Value | None, digits: int, factor: float = 1.0) -> str:
    """93.12, or 93.12 ± 0.07 over several seeds; a dash for nothing."""
    if value is None:
        return "–"
    mean = f"{value.mean * factor:.{digits}f}"
    return f"{mean} ± {value.spread * factor:.{digits}f}" if value.spread else mean


@dataclass(frozen=True)
class Point:
    """All runs of one series at one sparsity."""

    sparsity: float
    rows: tuple[dict[str, Any], ...]

    def value(self, field: str) -> Value | None:
        return Value.of(row.get(field) for row in self.rows)

    @cached_property
    def layers(self) -> dict[str, float]:
        """Layer → fraction of zeros, over all seeds."""
        zeros: dict[str, float] = {}
        total: dict[str, float] = {}
        for layer in (layer for row in self.rows for layer in row.get("layers") or ()):
            zeros[layer["name"]] = zeros.get(layer["name"], 0) + layer["zeros"]
            total[layer["name"]] = total.get(layer["name"], 0) + layer["total"]
        return {name: zeros[name] / total[name] for name in zeros if total[name]}


@dataclass(frozen=True)
class Series:
    """One method with one allocation, pattern and set of options; `index` is its place in the palette."""

    method: str
    allocation: str
    pattern: str  # N:M, or nothing
    index: int
    dashed: bool  # the line of every allocation but the first, and N:M
    points: tuple[Point, ...]
    name: str
    label: str  # the name, with the pattern, and the allocation and the options in which the method's series differ


def gather(results: dict[str, Any]) -> list[Series]:
    """The series in their order of appearance, points by sparsity; colours go by method, dashes by allocation."""
    rows = check(results)["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    allocations = list(dict.fromkeys(row["allocation"] for row in rows))
    kinds = list(dict.fromkeys(_kind(row) for row in rows))
    several = {m: len({kind.allocation for kind in kinds if kind.method == m}) > 1 for m in methods}
    series = []
    for kind in kinds:
        own = [row for row in rows if _kind(row) == kind]
        points = [Point(s, tuple(r for r in own if r["sparsity"] == s)) for s in sorted({r["sparsity"] for r in own})]
        name = NAMES.get(kind.method, kind.method)
        told = [kind.allocation] if several[kind.method] else []
        told += [kind.pattern] if kind.pattern else []
        told += _differing(kind, [other for other in kinds if other.method == kind.method])
        label = f"{name} ({', '.join(told)})" if told else name
        dashed = bool(kind.pattern) or (several[kind.method] and kind.allocation != allocations[0])
        index = methods.index(kind.method)
        series.append(Series(kind.method, kind.allocation, kind.pattern, index, dashed, tuple(points), name, label))
    return series


class Kind(NamedTuple):
    """What the runs of a series have in common."""

    method: str
    allocation: str
    pattern: str
    options: tuple[tuple[str, str], ...]


def _kind(row: dict[str, Any]) -> Kind:
    options = row.get("options") or {}
    pattern = row["asked"] if isinstance(row.get("asked"), str) else ""
    said = tuple((name, f"{value}") for name, value in sorted(options.items()))
    return Kind(row["method"], row["allocation"], pattern, said)


def _differing(kind: Kind, siblings: list[Kind]) -> list[str]:
    """The options of `kind` that are not the same in all siblings, such as block=96."""
    shared = set.intersection(*(set(other.options) for other in siblings))
    return [f"{name}={value}" for name, value in kind.options if (name, value) not in shared]


def check(results: Any) -> dict[str, Any]:
    """The results, their fields checked for their types.

    Raises:
        InputError: naming the first field that is missing or of another type.
    """
    if not isinstance(results, dict) or results.get("format") != 1:
        raise InputError("The results are of another format; this version reads format 1.")
    for field, kind in HEAD.items():
        _expect(isinstance(results.get(field), kind), field, kind.__name__)
    for field in ("settings", "versions", "machine"):
        _expect(isinstance(results.get(field) or {}, dict), field, "dict")
    if str(results.get("metric", "top1")) not in METRICS:
        raise InputError(f"The results are measured in {results['metric']!r:.40}; a report shows {', '.join(METRICS)}.")
    if results["dense"].get("loss") is not None:
        _check_fields(results["dense"], {"loss": NUMBER}, "dense")
    main = {metric_of(results).field: NUMBER}
    _check_fields(results["dense"], main, "dense")
    for i, row in enumerate(results["rows"]):
        _expect(isinstance(row, dict), f"rows[{i}]", "dict")
        present = {field: kind for field, kind in OPTIONAL.items() if row.get(field) is not None}
        _check_fields(row, {**ROW, **main, **present}, f"rows[{i}]")
        _expect(0 <= row["sparsity"] <= 1, f"rows[{i}].sparsity", "fraction between 0 and 1")
        for j, layer in enumerate(row.get("layers") or ()):
            _expect(isinstance(layer, dict), f"rows[{i}].layers[{j}]", "dict")
            _check_fields(layer, LAYER, f"rows[{i}].layers[{j}]")
    return results


def _check_fields(value: dict[str, Any], kinds: dict[str, tuple], place: str) -> None:
    for field, kind in kinds.items():
        found = value.get(field)
        right = isinstance(found, kind) and not isinstance(found, bool)
        _expect(right, f"{place}.{field}", "number" if kind is NUMBER else " or ".join(k.__name__ for k in kind))


def _expect(right: bool, place: str, kind: str) -> None:
    if not right:
        raise InputError(f"The results cannot be shown: {place} should be of type {kind}.")
