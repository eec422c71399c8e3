"""Runtimes timed side by side: all are loaded, then take turns round by round, in another order each time.

A machine that slows down slows them alike, and ratios are taken inside a round. Each turn begins with a call that does
not count, and takes as many calls as fill the time of a turn. Everything compared has the same number of threads.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import InputError, check_whole
from ..progress import Track, silent
from .models import DENSE, Prepared
from .process import Worker
from .runtimes import Runtime

MOST_CALLS = 200  # in one turn
DIFFERENT = 1e-2  # of the largest output: what is further away computes something else


@dataclass(frozen=True)
class Plan:
    """How long and with what it is timed."""

    threads: int
    rounds: int = 9
    turn_seconds: float = 0.5
    spin: bool = False  # whether threads may wait by spinning, and take time from whoever is next

    def __post_init__(self) -> None:
        check_whole(threads=self.threads, rounds=self.rounds)


@dataclass
class Timed:
    """One model in one runtime: the seconds of every call, round by round."""

    runtime: Runtime
    model: Prepared
    version: str
    load_seconds: float
    difference: float  # of its outputs from torch's, in units of the largest
    bytes: int | None
    calls: int = 1
    rounds: list[list[float]] = field(default_factory=list)


def entries(runtimes: Sequence[Runtime], models: Sequence[Prepared]) -> list[tuple[Runtime, Prepared]]:
    """What is timed: dense runtimes on the dense model, sparse ones on every model."""
    return [(r, m) for r in runtimes for m in models if r.sparse or m.candidate.label == DENSE]


def time_in_turns(
    pairs: Sequence[tuple[Runtime, Prepared]],
    images: Path,
    plan: Plan,
    required: frozenset[str] = frozenset(),
    track: Track = silent,
) -> tuple[list[Timed], dict[str, str]]:
    """Load every pair in a process of its own and time them in turns.

    Args:
        images: a .npy file, the batch that every call gets.
        required: names of runtimes that may not be left out.
    Returns:
        What was timed, and the runtimes that failed to load, with the reason.
    Raises:
        InputError: when a required runtime fails, or any of them later on.
    """
    with ExitStack() as stack:
        timed: dict[Worker, Timed] = {}
        failed: dict[str, str] = {}
        for runtime, model in track(pairs, "loading", len(pairs)):
            if runtime.name in failed:
                continue
            worker = stack.enter_context(Worker(runtime, plan.threads, plan.spin))
            try:
                timed[worker] = _load(worker, runtime, model, images, plan)
            except InputError as error:
                if runtime.name in required:
                    raise
                failed[runtime.name] = str(error)
        timed = {worker: one for worker, one in timed.items() if one.runtime.name not in failed}
        for worker, one in timed.items():
            one.calls = _calls(worker, plan)
        workers = list(timed)
        for number in track(range(plan.rounds), "rounds", plan.rounds):
            for worker in order_of(workers, number):
                timed[worker].rounds.append(worker.ask("time", calls=timed[worker].calls)["times"])
    return list(timed.values()), failed


def order_of(workers: Sequence, number: int) -> list:
    """Another one begins in each round, and every other round runs backwards, so nobody always follows the same."""
    first = number % max(len(workers), 1)
    turned = [*workers[first:], *workers[:first]]
    return turned[::-1] if number % 2 else turned


def _load(worker: Worker, runtime: Runtime, model: Prepared, images: Path, plan: Plan) -> Timed:
    loaded = worker.ask(
        "load", runtime=runtime.name, model=str(model.files[runtime.reads]), images=str(images), threads=plan.threads,
        spin=plan.spin,
    )  # fmt: skip
    outputs = model.files["folder"] / "outputs.npy"
    worker.ask("outputs", file=str(outputs))
    difference = difference_of(np.load(outputs), model.reference)
    if not difference <= DIFFERENT:
        raise InputError(
            f"The runtime {runtime.name} computes something else than torch: its outputs for {model.candidate.label}"
            f" differ by {difference:.2g} of the largest."
        )
    held = worker.ask("memory")["bytes"]
    return Timed(runtime, model, loaded["version"], loaded["seconds"], difference, held)


def difference_of(outputs: np.ndarray, reference: np.ndarray) -> float:
    """The largest, in units of the largest output; over the images that the reference has."""
    if outputs[: len(reference)].shape != reference.shape:
        return float("inf")
    scale = max(float(np.abs(reference).max()), 1e-30)
    return float(np.abs(outputs[: len(reference)] - reference).max()) / scale


def _calls(worker: Worker, plan: Plan) -> int:
    """How many calls fill a turn."""
    (seconds,) = worker.ask("time", calls=1)["times"]
    return max(1, min(MOST_CALLS, round(plan.turn_seconds / max(seconds, 1e-9))))


def fastest_dense(timed: Sequence[Timed]) -> Timed:
    """The best runtime of the dense model, this package's own not among them: what speedups are measured against."""
    rivals = [one for one in timed if one.model.candidate.label == DENSE and one.runtime.name != "secateur"]
    if not rivals:
        raise InputError(
            "No runtime but secateur's own could run the dense model, so there is nothing to compare with."
        )
    return min(rivals, key=seconds_per_call)


def seconds_per_call(timed: Timed) -> float:
    """The median over rounds of a round's mean."""
    return float(np.median([np.mean(times) for times in timed.rounds]))


def speedup(base: Timed, timed: Timed) -> float:
    """The median over rounds of how many times faster than `base`."""
    pairs = zip(base.rounds, timed.rounds, strict=True)
    return float(np.median([np.mean(slow) / np.mean(fast) for slow, fast in pairs]))


def percentiles(timed: Timed, wanted: Sequence[float] = (50, 95)) -> list[float]:
    """Of the seconds of all calls."""
    return [float(p) for p in np.percentile([s for times in timed.rounds for s in times], wanted)]


def versions(timed: Sequence[Timed]) -> Mapping[str, str]:
    """Runtime → version."""
    return {one.runtime.name: one.version for one in timed}
