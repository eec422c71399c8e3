"""The figure of accuracy against throughput."""

import re

import pytest

from secateur.errors import InputError
from secateur.report import save_speeds

ROWS = [
    {"architecture": "vit", "model": model, "runtime": runtime, "batch": batch, "sparsity": sparsity,
     "images_per_second": 10.0 * batch * (1 + sparsity), "top1": top1}
    for batch in (1, 8)
    for runtime in ("secateur", "torch")
    for model, sparsity, top1 in (("dense", 0.0, None), ("a", 0.5, 80.0), ("b", 0.9, 75.0))
    if runtime == "secateur" or model == "dense"
]  # fmt: skip


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_figure_is_drawn_the_same_each_time(tmp_path, ending):
    for name in ("a", "b"):
        save_speeds({"rows": ROWS}, tmp_path / f"{name}.{ending}")
    assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_the_axes_say_what_is_drawn(tmp_path):
    def words(rows, **options):
        save_speeds({"rows": rows}, tmp_path / "figure.svg", **options)
        return re.findall(r"<!-- (.*?) -->", (tmp_path / "figure.svg").read_text())

    drawn = words(ROWS)
    assert {"images per second, batch 8", "top-1 accuracy, %", "secateur", "torch", "90\N{NO-BREAK SPACE}%"} <= set(
        drawn
    )
    assert "images per second, batch 1" in words(ROWS, batch=1)
    unmeasured = words([row | {"top1": None} for row in ROWS])
    assert "zeros among the prunable weights, %" in unmeasured and "top-1 accuracy, %" not in unmeasured


@pytest.mark.parametrize(
    ("rows", "options", "file", "words"),
    [
        ([], {}, "a.svg", "there are no rows"),
        (None, {}, "a.svg", "there are no rows"),
        ([ROWS[0] | {"runtime": 3}], {}, "a.svg", r"rows\[0\].runtime is 3"),
        ([ROWS[0] | {"images_per_second": "9"}], {}, "a.svg", r"rows\[0\].images_per_second is '9'"),
        (ROWS, {"batch": 3}, "a.svg", "there is no batch of 3"),
        (ROWS, {}, "a.pdf", "drawn as .svg or .png, not as '.pdf'"),
        (ROWS, {}, "a", "a file without ending"),
    ],
)
def test_what_cannot_be_drawn_is_refused(rows, options, file, words, tmp_path):
    with pytest.raises(InputError, match=words):
        save_speeds({"rows": rows}, tmp_path / file, **options)
