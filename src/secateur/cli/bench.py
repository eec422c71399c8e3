"""Time saved models in this runtime and in others, side by side in one run.

  secateur bench pruned/0.75 pruned/0.9 --data-dir images --out speed
  secateur bench --model deit_small_patch16_224 --random-sparsity 0.5 0.75 0.9

Each model runs in each runtime in a process of its own, with the same number of threads; they take turns, round by
round, and speedups are ratios inside a round against the fastest dense runtime. Runtimes that gain nothing from zeros
are timed on the dense model: its time does not depend on values. --deepsparse names the Python of an environment that
has DeepSparse. With images, the accuracy of each model is measured too. --out takes a new folder for bench.json and
speed.svg.
"""

import os
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from .console import Console
from .options import option
from .shared import EvaluationOptions

if TYPE_CHECKING:
    from ..benchmark import Candidate

HELP = "time models in several runtimes, side by side"


@dataclass
class Options(EvaluationOptions):
    runs: list[str] = option([], "folders that secateur wrote, or other names of models", positional=True)
    model: str | None = option(None, "timm name of an architecture to time with random weights")
    random_sparsity: list[float] = option([], "sparsities of its random masks", least=0, most=1)
    runtimes: list[str] = option([], "which to time: secateur, torch, torch.compile, onnxruntime, openvino, deepsparse"
                                 " (default: all that are there)")  # fmt: skip
    deepsparse: str | None = option(None, "Python of an environment with DeepSparse", metavar="PYTHON")
    batch_sizes: list[int] = option([1, 64], "images that go through a model at once", least=1)
    threads: int | None = option(None, "of each runtime (default: all cores)", least=1)
    rounds: int = option(9, "turns of each model in each runtime; medians over them count", least=1)
    turn_seconds: float = option(0.5, "time to fill with calls in one turn; one call at least", least=0)
    out: str | None = option(None, "folder to write; without it nothing is written", metavar="FOLDER")
    overwrite: bool = option(False, "replace a folder that secateur wrote before")
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..benchmark import choose
    from ..files import check_output, new_folder
    from ..report import save_speeds
    from ..strict_json import json_bytes
    from .checks import check_data

    if options.task != "classification":
        raise InputError("secateur bench times classifiers; leave --task detection out.")
    runtimes, left_out = choose(options.runtimes, options.deepsparse)
    groups = _candidates(options)
    check_data(options)
    if options.out is not None:
        check_output(options.out, options.overwrite)
    with Console(options.json) as console:
        results = _results(options, groups, runtimes, left_out, console)
    if options.out is not None:
        with new_folder(options.out, options.overwrite) as folder:
            (folder / "bench.json").write_bytes(json_bytes(results))
            save_speeds(results, folder / "speed.svg")
    console.document(results)
    _print(options, results, console)
    return 0


def _candidates(options: Options) -> "list[list[Candidate]]":
    """The models, by architecture, each group with its dense one first."""
    from ..benchmark import random_candidates, saved_candidates
    from ..sparsity import read_sparsity

    if not options.runs and options.model is None:
        raise InputError("Nothing to time: give folders that secateur wrote, or --model NAME for random weights.")
    if options.random_sparsity and options.model is None:
        raise InputError("--random-sparsity needs --model NAME, the architecture to make.")
    for sparsity in options.random_sparsity:
        read_sparsity(sparsity)
    random = [random_candidates(options.model, options.random_sparsity)] if options.model is not None else []
    return [*saved_candidates(options.runs), *random]


def _results(options: Options, groups, runtimes, left_out: dict, console: Console) -> dict:
    """The whole document; the machine is described before it is put to work."""
    from .. import __version__
    from ..benchmark import Plan, compare_runtimes, describe_machine

    threads = options.threads or os.cpu_count() or 1
    plan = Plan(threads, options.rounds, options.turn_seconds)
    start, machine = time.perf_counter(), describe_machine(threads)
    rows: list[dict] = []
    found: dict[str, str] = {"secateur": __version__}
    for group in groups:
        accuracy = _accuracy(options, group, console)
        measured = compare_runtimes(
            group, runtimes, list(dict.fromkeys(options.batch_sizes)), plan, frozenset(options.runtimes), console.track
        )
        left_out, found = left_out | measured["left_out"], found | measured["versions"]
        rows += [row | {"top1": accuracy.get(row["model"])} for row in measured["rows"]]
    for name, reason in left_out.items():
        console.note(f"Left out {name}: {reason}")
    return _document(options, plan, machine, rows, found, left_out, time.perf_counter() - start)


def _document(options: Options, plan, machine: dict, rows: list, found: dict, left_out: dict, seconds: float) -> dict:
    return {
        "format": 1,
        "command": shlex.join(["secateur", *sys.argv[1:]]),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": found,
        "plan": asdict(plan),
        "settings": asdict(options),
        "rows": rows,
        "left_out": left_out,
        "seconds": seconds,
    }


def _accuracy(options: Options, group, console: Console) -> dict[str, float]:
    """Model → top-1, of those that were saved, where the command line says where images are."""
    from ..evaluation import evaluate
    from .sources import evaluation, notes

    found = {}
    for candidate in group[1:] if options.names_data() and options.runs else ():
        if candidate.label in options.runs:
            model = candidate.make()
            images = evaluation(options, model)
            found[candidate.label] = evaluate(model, images, track=console.track).top1
            notes(console, [images])
    return found


def _print(options: Options, results: dict, console: Console) -> None:
    from ..units import readable

    for architecture, batch in dict.fromkeys((row["architecture"], row["batch"]) for row in results["rows"]):
        rows = [row for row in results["rows"] if (row["architecture"], row["batch"]) == (architecture, batch)]
        console.table(
            f"{architecture}, batch {batch}, {results['machine']['threads']} threads;"
            f" speedup against {rows[0]['against']} on the dense model",
            ["model", "zeros", "runtime", "images/s", "p50 ms", "p95 ms", "speedup", "top-1 %", "memory", "difference"],
            [
                (
                    row["model"], f"{100 * row['sparsity']:.1f} %", row["runtime"], f"{row['images_per_second']:.1f}",
                    f"{row['p50_ms']:.2f}", f"{row['p95_ms']:.2f}", f"{row['speedup']:.2f}",
                    None if row["top1"] is None else f"{row['top1']:.2f}",
                    None if row["bytes"] is None else readable(row["bytes"]), row["difference"],
                )
                for row in sorted(rows, key=lambda row: (row["sparsity"], row["model"], -row["images_per_second"]))
            ],
            section="model",
        )  # fmt: skip
    console.line(f"Medians over {options.rounds} rounds; everything took {results['seconds']:.0f} s.")
    if options.out:
        console.line(f"Written: {Path(options.out) / 'bench.json'} and speed.svg.")
