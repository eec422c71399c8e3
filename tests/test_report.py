import itertools
import json
import math
import re
from html.parser import HTMLParser

import pytest

from secateur.errors import InputError
from secateur.report import read_results, save_curve, write_report
from secateur.report.charts import accuracy_chart, cut_below, nice_ticks, spread_labels
from secateur.report.page import result_table
from secateur.report.results import METRICS, Value, gather

SPARSITIES = (0.5, 0.75, 0.85, 0.9, 0.95, 0.97)
TOP1 = {
    ("cap", "global"): (93.3, 93.1, 92.8, 92.4, 89.9, 84.2),
    ("cap", "uniform"): (93.2, 92.9, 92.2, 91.0, 86.5, 76.8),
    ("woodfisher", "global"): (93.2, 92.1, 89.0, 80.3, 52.4, 31.0),
    ("magnitude", "global"): (92.6, 84.9, 61.2, 38.7, 17.1, 10.0),
}


def layer_rows(count, sparsity, allocation):
    kinds = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    rows = []
    for i in range(count):
        tilt = 0 if allocation == "uniform" else 0.9 * math.sin(i * 0.37) + 0.5 * (i % 4 - 1.5) - i / count
        total = (49152, 16384, 65536, 65536)[i % 4]
        zeros = round(total * (1 - min(1.0, (1 - sparsity) * 2**tilt)))
        rows.append({"name": f"blocks.{i // 4}.{kinds[i % 4]}.weight", "zeros": zeros, "total": total})
    return rows


def results(layers=24, seeds=2, series=TOP1, sparsities=SPARSITIES):
    rows = []
    for (method, allocation), top1 in series.items():
        for i, sparsity in enumerate(sparsities):
            drop = 93.4 - top1[i]
            for seed in range(seeds):
                shake = 0.35 * drop**0.5 * (-1) ** seed
                name = f"checkpoints/{method}-{allocation}-{round(100 * sparsity)}"
                rows.append(
                    {
                        "method": method,
                        "allocation": allocation,
                        "sparsity": sparsity,
                        "achieved": sparsity + 1e-6,
                        "top1": top1[i] + shake,
                        "top5": 99.9 - drop / 9,
                        "loss": 0.205 + drop * 0.021 - 0.006,
                        "predicted_loss_increase": None if method == "magnitude" else 0.0011 * (1 + drop) ** 1.9,
                        "seconds": 3.1 + i + seed,
                        "seed": seed,
                        "checkpoint": name if seed == 0 else None,
                        "layers": layer_rows(layers, sparsity, allocation),
                    }
                )
    return {
        "format": 1,
        "command": "secateur compare vit_mini --methods cap,woodfisher,magnitude --sparsity 0.5,0.75,0.9 --seeds 2",
        "model": {"name": "vit_mini", "parameters": 1215946, "prunable": 1179648},
        "data": {
            "calibration": "Fashion-MNIST, training half",
            "samples": 2048,
            "evaluation": "Fashion-MNIST, test half",
            "images": 10000,
        },
        "dense": {"top1": 93.4, "loss": 0.205},
        "rows": rows,
        "settings": {"block": 192, "damping": 0.01, "samples_per_gradient": 1, "layers": None, "cap": {"a": [1, 2]}},
        "versions": {"secateur": "0.1.0", "torch": "2.15.0", "timm": "1.0.31", "python": "3.11.7"},
        "machine": {"processor": "2 cores, AVX-512", "memory_bytes": 16_000_000_000},
        "created": "2026-11-20T14:03:00+00:00",
    }


class Reader(HTMLParser):
    """Collects tags, attributes and text, as a browser would see them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.values, self.text = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.values += [(tag, name, value or "") for name, value in attributes]

    def handle_data(self, data):
        self.text += data


def page_of(given, folder):
    return write_report(given, folder).read_text()


def test_the_page_shows_the_curves_the_table_and_the_command(tmp_path):
    page = Reader(page_of(results(), tmp_path))
    assert page.tags.count("svg") > 6 and "script" not in page.tags and "link" not in page.tags
    for text in (
        "CAP (uniform)",
        "WoodFisher",
        "dense 93.4 %",
        "93.10 ± ",
        "secateur compare vit_mini",
        "blocks.5.mlp.fc2",
    ):
        assert text in page.text
    assert ("a", "href", "checkpoints/cap-global-75") in page.values


def test_a_report_of_detectors_is_about_average_precision(tmp_path):
    found = results(layers=0)
    names = {"top1": "ap", "top5": "ap50"}
    rows = [{names.get(key, key): value for key, value in row.items()} for row in found["rows"]]
    found |= {"metric": "ap", "dense": {"ap": 93.4, "loss": 0.205}, "rows": rows}
    page = page_of(found, tmp_path)
    assert "CAP (global) keeps 92.4\N{NO-BREAK SPACE}% AP with 90\N{NO-BREAK SPACE}% zeros" in page
    assert "average precision</text>" in page and "<th>AP, %<th>Change<th>AP50, %" in page
    assert "op-1" not in page and "op-5" not in page
    save_curve(found, tmp_path / "curve.svg")
    assert "average precision, %" in (tmp_path / "curve.svg").read_text()


def test_the_headline_names_the_most_zeros_within_one_point(tmp_path):
    assert "CAP (global) keeps 92.4\N{NO-BREAK SPACE}% top-1 with 90\N{NO-BREAK SPACE}% zeros" in page_of(
        results(), tmp_path
    )
    bad = {("magnitude", "global"): (50.0,)}
    assert "No run stays within one point" in page_of(results(series=bad, sparsities=(0.5,)), tmp_path)


def test_the_page_needs_no_network_and_is_small_with_many_layers(tmp_path):
    page = page_of(results(layers=150, seeds=3), tmp_path)
    assert len(page.encode()) < 1_000_000
    assert not re.search(r"https?:|url\(|@import|<script", page)
    assert "blocks.37.attn.proj" in page


def test_the_page_and_the_dictionary_are_written_together_and_read_back(tmp_path):
    given = results()
    given["rows"][0]["loss"] = float("nan")
    write_report(given, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
    read = read_results(tmp_path)
    assert read["rows"][0]["loss"] is None and read["rows"][1:] == given["rows"][1:]
    page = (tmp_path / "report.html").read_text()
    assert page_of(read, tmp_path) == page


HOSTILE = '"><script>alert(1)</script>'


def poison(value):
    if isinstance(value, dict):
        return {HOSTILE + key if key == "block" else key: poison(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item) for item in value]
    return value + HOSTILE if isinstance(value, str) else value


def test_names_are_untrusted(tmp_path):
    page = Reader(page_of(poison(results(layers=4)), tmp_path))
    assert "script" not in page.tags and "alert(1)" in page.text


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", "/etc/passwd", "../up", "a/../../up", "https://elsewhere.org", "//x"]
)
def test_only_paths_below_the_report_become_links(tmp_path, link):
    given = results(layers=1)
    for row in given["rows"]:
        row["checkpoint"] = link
    page = Reader(page_of(given, tmp_path))
    assert "a" not in page.tags and link in page.text


BARE = {"format": 1, "model": {}, "data": {}, "dense": {"top1": 90.0}}
ROW = {"method": "cap", "allocation": "global", "sparsity": 0.5, "top1": 89.0}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [ROW],
        [{**ROW, "sparsity": 0.0}, {**ROW, "sparsity": 1.0}],
        [{**ROW, "top1": 90.0}],
        [{**ROW, "top1": 0.0, "loss": 0.1, "predicted_loss_increase": 0.0}],
        [{**ROW, "layers": [{"name": "a", "zeros": 0, "total": 0}, {"name": "b", "zeros": 9, "total": 9}]}],
        [{**ROW, "method": f"method {i}"} for i in range(12)],
    ],
)
def test_sparse_and_odd_results_still_make_a_page_and_a_picture(tmp_path, rows):
    for dense in ({"top1": 90.0}, {"top1": 90.0, "loss": 0.2}):
        page = page_of({**BARE, "dense": dense, "rows": rows}, tmp_path)
        assert "nan" not in page and "inf" not in re.sub("information", "", page)
    save_curve({**BARE, "rows": rows}, tmp_path / "curve.svg")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "another format; this version reads format 1"),
        ({"rows": {}}, "rows should be of type list"),
        ({"settings": [1]}, "settings should be of type dict"),
        ({"dense": {"top1": 90.0, "loss": "low"}}, r"dense\.loss should be of type number"),
        ({"dense": {}}, r"dense\.top1 should be of type number"),
        ({"metric": "ap"}, r"dense\.ap should be of type number"),
        ({"metric": "ap", "dense": {"ap": 40.0}}, r"rows\[0\]\.ap should be of type number"),
        ({"metric": ["ap"]}, r"The results are measured in \['ap'\]; a report shows top1, ap"),
        ({"rows": [3]}, r"rows\[0\] should be of type dict"),
        ({"rows": [{**ROW, "top1": "93"}]}, r"rows\[0\]\.top1 should be of type number"),
        ({"rows": [{**ROW, "sparsity": 50}]}, r"rows\[0\]\.sparsity should be of type fraction"),
        ({"rows": [{**ROW, "asked": {"*": "2:4"}}]}, r"rows\[0\]\.asked should be of type int or float or str"),
        ({"rows": [{**ROW, "checkpoint": 3}]}, r"rows\[0\]\.checkpoint should be of type str"),
        ({"rows": [{**ROW, "layers": [{"name": "a", "zeros": 1}]}]}, r"rows\[0\]\.layers\[0\]\.total should be"),
    ],
)
def test_results_of_another_shape_are_refused_before_anything_is_written(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        write_report({**BARE, "rows": [ROW], **change}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_report_that_is_missing_or_wrong_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"report\.json does not exist"):
        read_results(tmp_path)
    (tmp_path / "report.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(InputError, match="model should be of type dict"):
        read_results(tmp_path)


def test_seeds_are_gathered_into_mean_spread_and_extremes():
    point = gather(results(seeds=2))[0].points[0]
    low, high = sorted(row["top1"] for row in point.rows)
    value = point.value("top1")
    assert (value.low, value.high) == (low, high) and value.mean == pytest.approx((low + high) / 2)
    assert value.spread == pytest.approx((high - low) / 2**0.5)
    assert Value.of([None]) is None and Value.of([1.0, None]).spread == 0.0


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_curve_is_drawn_the_same_every_time(tmp_path, kind):
    for name in ("a", "b"):
        save_curve(results(layers=0), tmp_path / f"{name}.{kind}")
    first, second = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("a", "b"))
    assert first == second and first[:5] == {"svg": b"<?xml", "png": b"\x89PNG\r"}[kind]


def test_the_curve_has_two_endings(tmp_path):
    with pytest.raises(InputError, match=r"drawn as \.svg or \.png, not as '\.gif'"):
        save_curve(results(), tmp_path / "curve.gif")


def test_labels_are_moved_apart_and_stay_inside():
    placed = spread_labels([50, 51, 52, 300], 0, 300)
    assert placed == sorted(placed) and min(b - a for a, b in itertools.pairwise(placed)) >= 17
    assert spread_labels([300, 299], 0, 300) == [300, 283]


def test_a_line_ends_where_it_leaves_the_chart():
    assert cut_below([(0, 10), (10, 30), (20, 90)], 60) == [(0, 10), (10, 30), (15, 60)]
    assert cut_below([(0, 90), (10, 30)], 60) == [(10, 30)] and cut_below([], 60) == []


@pytest.mark.parametrize(("low", "high"), [(10, 93.4), (93.4, 93.4), (0.001, 0.002), (88.4, 93.6)])
def test_ticks_are_round_and_cover_the_range(low, high):
    ticks = nice_ticks(low, high, 6)
    assert 2 <= len(ticks) <= 9 and ticks[0] <= low


def test_contenders_that_differ_in_an_option_are_series_of_their_own():
    rows = [{**row, "options": {"block": block, "damping": 0.01}} for row in results()["rows"] for block in (8, 64)]
    labels = [s.label for s in gather({**results(), "rows": rows})]
    assert len(labels) == len(set(labels)) == 2 * len(gather(results()))
    assert all("block=" in label and "damping" not in label for label in labels)


def patterned():
    """Every row of `results` at half and at three quarters, asked for as N:M too."""
    given = results(layers=4)
    patterns = {0.5: ("2:4", "4:8"), 0.75: ("1:4",)}
    rows = [{**row, "asked": row["sparsity"]} for row in given["rows"]]
    rows += [{**row, "asked": nm, "top1": row["top1"] - 1} for row in rows for nm in patterns.get(row["sparsity"], ())]
    return {**given, "rows": rows}


def test_a_pattern_is_a_series_of_its_own_at_the_sparsity_it_has(tmp_path):
    series = {s.label: s for s in gather(patterned())}
    assert len(series) == 4 * len(TOP1) and {"WoodFisher", "WoodFisher (2:4)", "CAP (uniform, 1:4)"} < set(series)
    assert [point.sparsity for point in series["CAP (global, 1:4)"].points] == [0.75]
    assert all(len(point.rows) == 2 for s in series.values() for point in s.points)
    page = Reader(page_of(patterned(), tmp_path))
    assert all(text in page.text for text in ("CAP (global, 2:4)", "Magnitude (4:8)", "2:4"))
    rows = [row for group in result_table(gather(patterned()), 93.4, METRICS["top1"]) for row in group]
    asked = [row["sparsity"] for row in rows if row["series"].label.startswith("CAP (global")]
    assert sorted(asked)[:3] == ["1:4", "2:4", "4:8"] and len(asked) == len(SPARSITIES) + 3


def test_the_picture_has_patterns_only_where_there_are_no_lines(tmp_path):
    given = patterned()
    alone = {**given, "rows": [row for row in given["rows"] if isinstance(row["asked"], str)]}
    for name, shown in {"mixed": given, "lines": results(layers=4), "alone": alone}.items():
        save_curve(shown, tmp_path / f"{name}.svg")
    assert (tmp_path / "mixed.svg").read_bytes() == (tmp_path / "lines.svg").read_bytes()
    assert "<!-- CAP (global, 1:4) -->" in (tmp_path / "alone.svg").read_text()


def test_points_of_patterns_have_labels_only_where_no_lines_are():
    series = gather(patterned())
    labelled = [n.series.pattern for n in accuracy_chart(series, 93.4, 1040, 430).lines if n.label_y is not None]
    assert labelled == [""] * len(TOP1)
    alone = [s for s in series if s.pattern == "2:4"]
    chart = accuracy_chart(alone, 93.4, 1040, 430)
    assert all(line.label_y is not None for line in chart.lines) and len(chart.lines) == len(TOP1)


def test_names_of_patterns_are_untrusted_too(tmp_path):
    page = Reader(page_of(poison(patterned()), tmp_path))
    assert "script" not in page.tags and "alert(1)" in page.text


def test_values_that_are_all_equal_have_no_whisker(tmp_path):
    value = Value.of([0.1, 0.1, 0.1])  # their sum over three is a little more than 0.1
    assert value.low == value.mean == value.high
