"""A benchmark from models to rows: write the models, time them at every batch size, and state each as numbers."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import Track, silent
from .models import Candidate, Prepared, prepare, random_images, shape_of
from .runtimes import Runtime
from .turns import (
    Plan,
    Timed,
    entries,
    fastest_dense,
    percentiles,
    seconds_per_call,
    speedup,
    time_in_turns,
    versions,
)

REFERENCE_IMAGES = 4


def compare_runtimes(
    candidates: Sequence[Candidate],
    runtimes: Sequence[Runtime],
    batch_sizes: Sequence[int],
    plan: Plan,
    required: frozenset[str] = frozenset(),
    track: Track = silent,
) -> dict[str, Any]:
    """Time one architecture's models.

    Args:
        candidates: the dense model first, as `random_candidates` and `saved_candidates` give them.
        required: names of runtimes that may not be left out when they fail to load.
    Returns:
        "rows", one for each batch size, runtime and model; "versions"; "left_out", runtime → reason.
    Raises:
        InputError: when a runtime fails that may not.
    """
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="secateur-bench-") as place:
        images = random_images(shape_of(candidates[0]), max(batch_sizes))
        kinds = {runtime.reads for runtime in runtimes}
        models = [
            prepare(candidate, images[: min(REFERENCE_IMAGES, *batch_sizes)], Path(place) / str(number), kinds)
            for number, candidate in enumerate(track(candidates, "writing models", len(candidates)))
        ]
        for batch in batch_sizes:
            timed, failed = _at_batch(models, runtimes, images[:batch], Path(place), plan, required, track)
            left_out |= failed
            found |= versions(timed)
            rows += rows_of(timed, batch)
    return {"rows": rows, "versions": found, "left_out": left_out}


def _at_batch(
    models: Sequence[Prepared],
    runtimes: Sequence[Runtime],
    images: np.ndarray,
    place: Path,
    plan: Plan,
    required: frozenset[str],
    track: Track,
) -> tuple[list[Timed], dict[str, str]]:
    file = place / f"images-{len(images)}.npy"
    np.save(file, images)
    return time_in_turns(entries(runtimes, models), file, plan, required, track)


def rows_of(timed: Sequence[Timed], batch: int) -> list[dict[str, Any]]:
    """What was measured at one batch size, as plain numbers."""
    base = fastest_dense(timed)
    rows = []
    for one in timed:
        candidate, (p50, p95) = one.model.candidate, percentiles(one)
        rows.append(
            {
                "architecture": candidate.architecture, "model": candidate.label, "sparsity": candidate.sparsity,
                "runtime": one.runtime.name, "batch": batch,
                "images_per_second": batch / seconds_per_call(one), "p50_ms": 1e3 * p50, "p95_ms": 1e3 * p95,
                "speedup": speedup(base, one), "against": base.runtime.name,
                "bytes": one.bytes, "load_seconds": one.load_seconds, "difference": one.difference,
                "calls": one.calls, "rounds": [float(np.mean(times)) for times in one.rounds],
            }
        )  # fmt: skip
    return rows
