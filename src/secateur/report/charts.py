"""Where everything in a chart goes, in pixels; the template draws it, so that all names are escaped in one place.

Sparsity is laid out by the logarithm of what is kept: 50, 75, 90, 95 % are then as far apart as they are hard.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .results import METRICS, Metric, Series

LINE = 17  # pixels between two labels, at least
KEPT_LEAST = 1e-3  # sparsity 1 is drawn as 99.9 %


@dataclass(frozen=True)
class Mark:
    """A point, its whisker and what a pointer resting on it reads."""

    x: float
    y: float
    low: float
    high: float
    title: str
    below: bool = False  # lies under the axis, drawn on it


@dataclass(frozen=True)
class Line:
    """A series in a chart: `path` joins all its points inside the chart; `label_y` is None where there is no room."""

    series: Series
    marks: list[Mark]
    path: list[tuple[float, float]] = field(default_factory=list)
    label_y: float | None = None


@dataclass(frozen=True)
class Chart:
    """A drawing of `width` by `height`, its plotting area from (left, top) to (right, bottom)."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    x_title: str
    y_title: str
    x_ticks: list[tuple[float, str]] = field(default_factory=list)
    y_ticks: list[tuple[float, str]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    rule: tuple[float, float, float, float] | None = None  # dense accuracy, or predicted = measured
    rule_label: str = ""


def accuracy_chart(
    series: list[Series],
    dense: float,
    width: int,
    height: int,
    window: float | None = None,
    metric: Metric = METRICS["top1"],
) -> Chart:
    """Accuracy against sparsity; `window` shows only that many points below the dense model.

    Labels stand beside the ends of the lines where the chart is wide enough; what is asked for as N:M is a point.
    """
    labelled = width > 500
    area = chart_area(width, height, right=150 if labelled else 14)
    kept = [point.sparsity for s in series for point in s.points] or [0.0]
    values = [v for s in series for point in s.points for v in _extremes(point.value(metric.field))] + [dense]
    low, high = (dense - window, max(values)) if window else (min(values), max(values))
    ticks = nice_ticks(low, high + (high - low) * 0.03, 6)
    low, high = min(low, ticks[0]) if not window else low, max(high + (high - low) * 0.05, ticks[-1])
    x = scale(depth(min(kept)) - 0.15, depth(max(kept)) + 0.15, area["left"], area["right"])
    y = scale(low, high, area["bottom"], area["top"])
    lines = []
    for s in series:
        marks = []
        means = [(point, value) for point in s.points if (value := point.value(metric.field))]
        path = cut_below([(x(depth(point.sparsity)), y(value.mean)) for point, value in means], area["bottom"])
        for point, value in means:
            if value.mean < low:
                continue
            title = f"{s.label}: {value.mean:.2f} % at {percent(point.sparsity)} zeros"
            marks.append(Mark(x(depth(point.sparsity)), y(value.mean), y(max(value.low, low)), y(value.high), title))
        lines.append(Line(s, marks, path))
    if labelled:
        points_alone = all(s.pattern for s in series)  # beside lines, the legend is enough for them
        named = [i for i, line in enumerate(lines) if line.marks and (points_alone or not line.series.pattern)]
        ends = spread_labels([lines[i].marks[-1].y for i in named], area["top"], area["bottom"])
        for i, end in zip(named, ends, strict=True):
            lines[i] = replace(lines[i], label_y=end)
    return Chart(
        **area,
        x_title="zeros among the prunable weights",
        y_title=metric.title,
        x_ticks=_thin([(x(depth(s)), percent(s)) for s in sorted(set(kept))]),
        y_ticks=[(y(value), f"{value:g} %") for value in ticks if low <= value <= high],
        lines=lines,
        rule=(area["left"], y(dense), area["right"], y(dense)),
        rule_label=f"dense {dense:.1f} %",
    )


def prediction_chart(series: list[Series], dense_loss: float, width: int, height: int) -> Chart | None:
    """Measured against predicted loss increase, both logarithmic; None where nothing was predicted."""
    pairs = [
        (s, point, promised.mean, loss.mean - dense_loss)
        for s in series
        for point in s.points
        if (promised := point.value("predicted_loss_increase")) and (loss := point.value("loss"))
        if promised.mean > 0
    ]
    if not pairs:
        return None
    area = chart_area(width, height, right=16)
    x_low, x_high = _decades([predicted for _, _, predicted, _ in pairs])
    y_low, y_high = _decades([measured for _, _, _, measured in pairs if measured > 0] or [1e-3])
    x = scale(x_low, x_high, area["left"], area["right"])
    y = scale(y_low, y_high, area["bottom"], area["top"])
    lines = []
    for s in series:
        marks = []
        for _, point, predicted, measured in (pair for pair in pairs if pair[0] is s):
            level = y(math.log10(measured)) if measured > 0 else float(area["bottom"])
            title = f"{s.label} at {percent(point.sparsity)}: predicted {predicted:.3g}, measured {measured:.3g}"
            marks.append(Mark(x(math.log10(predicted)), level, level, level, title, measured <= 0))
        if marks:
            lines.append(Line(s, marks))
    start, stop = max(x_low, y_low), min(x_high, y_high)
    return Chart(
        **area,
        x_title="predicted loss increase",
        y_title="measured loss increase",
        x_ticks=[(x(power), _power(power)) for power in range(x_low, x_high + 1)],
        y_ticks=[(y(power), _power(power)) for power in range(y_low, y_high + 1)],
        lines=lines,
        rule=(x(start), y(start), x(stop), y(stop)) if start < stop else None,
        rule_label="predicted = measured",
    )


def percent(fraction: float) -> str:
    """0.75 → 75 %, 0.975 → 97.5 %, never broken over two lines."""
    return f"{round(100 * fraction, 3):g}\N{NO-BREAK SPACE}%"


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers that cover the range."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / count
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
    return [round(step * i, 10) for i in range(math.floor(low / step), math.floor(high / step) + 1)]


def spread_labels(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Heights near the wanted ones, in their order, LINE pixels apart."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed: dict[int, float] = {}
    previous = top - LINE
    for i in order:
        placed[i] = previous = max(wanted[i], previous + LINE)
    following = bottom + LINE
    for i in reversed(order):
        placed[i] = following = min(placed[i], following - LINE)
    return [placed[i] for i in range(len(wanted))]


def cut_below(points: Sequence[tuple[float, float]], bottom: float) -> list[tuple[float, float]]:
    """The line through the points, as far as it stays above `bottom` (y grows downwards)."""
    path = [point for point in points[:1] if point[1] <= bottom]
    for (x1, y1), (x2, y2) in itertools.pairwise(points):
        if y1 <= bottom < y2:
            return [*path, (round(x1 + (bottom - y1) / (y2 - y1) * (x2 - x1), 1), bottom)]
        if y2 <= bottom:
            path.append((x2, y2))
    return path


def chart_area(width: int, height: int, right: int) -> dict[str, int]:
    """Where the plotting area of a chart lies."""
    return {"width": width, "height": height, "left": 58, "right": width - right, "top": 30, "bottom": height - 48}


def scale(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    """From values between `low` and `high` to pixels."""
    span = (high - low) or 1.0
    return lambda value: round(start + (value - low) / span * (stop - start), 1)


def depth(sparsity: float) -> float:
    """How many times what is kept was halved."""
    return -math.log2(max(1 - sparsity, KEPT_LEAST))


def _extremes(value) -> tuple[float, ...]:
    return (value.low, value.high) if value else ()


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -4 <= power <= 4 else f"1e{power}"


def _thin(ticks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Leave out labels that would touch the one before; the last stays."""
    kept: list[tuple[float, str]] = []
    for tick in reversed(ticks):
        if not kept or kept[-1][0] - tick[0] >= 40:
            kept.append(tick)
    return kept[::-1]
