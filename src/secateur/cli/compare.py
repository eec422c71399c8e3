"""Prune one model with several methods at several sparsities, sharing the gradients, and report which does best.

  secateur compare --model bundled --methods magnitude woodfisher cap --sparsity 0.75 0.9 --out comparison

Writes report.html (opens without a network), report.json, and the pruned models under checkpoints/. With several seeds
everything is repeated on other calibration images, and the tables show means.
"""

import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path

from .console import Console
from .options import option
from .shared import CalibrationOptions, EvaluationOptions, FisherOptions, LayerOptions, ModelOptions

HELP = "compare methods on one model"


@dataclass
class Options(LayerOptions, FisherOptions, EvaluationOptions, CalibrationOptions, ModelOptions):
    methods: list[str] = option(
        ["magnitude", "magnitude:uniform", "woodfisher", "woodfisher:uniform", "cap", "cap:uniform"],
        "methods, each with an allocation or options after colons, such as cap:uniform:block=96; all for every one",
    )
    sparsity: list[float | str] = option(
        [0.5, 0.65, 0.75, 0.85, 0.9], "fractions of the weights to end as zeros, or N:M patterns such as 2:4",
        metavar="FRACTION|N:M",
    )  # fmt: skip
    allocation: str = option("global", "for the methods that name none", choices=("global", "uniform"))
    seeds: list[int] = option([], "repeat with each of these seeds (default: --seed alone)", least=0)
    recalibrate: bool = option(True, "measure batch normalisation's statistics again")
    out: str | None = option(None, "folder to write; without it nothing is written", metavar="FOLDER")
    checkpoints: bool = option(True, "save the pruned models")
    overwrite: bool = option(False, "replace a folder that secateur wrote before")
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..comparison import contender
    from ..files import check_output, new_folder
    from ..report import write_report
    from .checks import check_data, check_gradients, goals_of

    goals = goals_of(options.sparsity)
    said = dict.fromkeys(itertools.chain(*map(_methods, options.methods)))
    contenders = [contender(text, options.allocation, **options.said_of_fisher()) for text in said]
    check_gradients(options, options)
    check_data(options)
    if options.out is not None:
        check_output(options.out, options.overwrite)
    with Console(options.json) as console:
        if options.out is None:
            results = _results(options, contenders, goals, None, console)
        else:
            with new_folder(options.out, options.overwrite) as folder:
                results = _results(options, contenders, goals, folder, console)
                write_report(results, folder)
    console.document(results)
    _print(options, results, console)
    return 0


def _methods(text: str) -> list[str]:
    """The methods that a word of --methods names: "all:uniform" each of them with uniform allocation."""
    from ..solvers import METHODS

    name, *rest = text.split(":")
    return [":".join([method, *rest]) for method in METHODS] if name == "all" else [text]


def _results(options: Options, contenders, goals: list, folder, console) -> dict:
    """Every contender at every sparsity for every seed; the pruned models go below `folder`."""
    from ..checkpoint import save
    from ..comparison import compare, fitted
    from .checks import check_goals, check_room, name_of
    from .results import describe, row_of
    from .sources import calibration, describe_data, evaluation, in_memory, load, notes
    from .tasks import figures, in_words, measure

    start = time.perf_counter()
    model, seeds = load(options), list(dict.fromkeys(options.seeds)) or [options.seed]
    contenders = [fitted(chosen, model, paper=options.settings == "paper") for chosen in contenders]
    check_goals(model, options.layers, contenders, goals)
    runs = len(contenders) * len(goals)
    if options.out and options.checkpoints:
        check_room(options.out, model, runs * len(seeds))
    calibrations = {seed: calibration(replace(options, seed=seed), model) for seed in seeds}
    images = evaluation(options, model)
    notes(console, [*calibrations.values(), images])
    held = in_memory(images, console.track)

    def measured(pruned):
        return measure(options.task, pruned, held, console.track)

    dense, rows = measured(model), []
    for seed, batches in calibrations.items():
        pairs = compare(
            model, batches, contenders, goals, measured,
            layers=options.layers or None, samples_per_gradient=options.samples_per_gradient,
            recalibrate=options.recalibrate, resources=options.resources(), track=console.track,
        )  # fmt: skip
        for row in console.track(pairs, "all runs", runs):
            name = f"{row.contender.label.replace(':', '-')}-{name_of(row.result.sparsity)}"
            name += f"-seed{seed}" if len(seeds) > 1 else ""
            saved = f"checkpoints/{name}" if folder and options.checkpoints else None
            if saved:
                data = describe_data(batches, images, options)
                save(model, row.result, folder / saved, {"model": options.model, "data": data, "seed": seed})
            rows.append(row_of(row, options.task, seed, saved))
            console.step(f"{name}: {in_words(options.task, figures(options.task, row.evaluation))}")
    notes(console, [*calibrations.values(), images])
    data = describe_data(calibrations[seeds[0]], images, options)
    return describe(options, model, data, dense, rows, time.perf_counter() - start)


def _print(options: Options, results: dict, console) -> None:
    from ..report.results import Value, value_text
    from .results import asked_text, options_line, tell_left_out
    from .tasks import columns, in_words

    dense, data, rows, metrics = results["dense"], results["data"], results["rows"], columns(options.task)
    digits = {**dict.fromkeys(metrics, 2), "loss": 3}
    seeds = len({row["seed"] for row in rows})
    table = []
    runs: dict[tuple[str, str], list[dict]] = {}  # one for every seed
    for row in sorted(rows, key=lambda row: (row["sparsity"], asked_text(row))):
        runs.setdefault((asked_text(row), row["label"]), []).append(row)
    for (asked, label), same in runs.items():
        texts = [value_text(Value.of(row[key] for row in same), count) for key, count in digits.items()]
        means = [Value.of(row[key] for row in same) for key in ("predicted_loss_increase", "seconds")]
        predicted, seconds = (v.mean if v else None for v in means)
        table.append([label, asked, *texts, predicted, f"{seconds:.1f}"])
    console.table(
        f"{options.model} on {data['images']:,} images; dense: {in_words(options.task, dense)}",
        ["method", "sparsity", *metrics.values(), "loss", "predicted\nincrease", "seconds"],
        table,
        section="sparsity",
    )
    tell_left_out(rows, console)
    if seeds > 1:
        console.line(f"Means over {seeds} seeds ± standard deviation.")
    if any(row["gradients"] for row in rows):
        console.line(f"The gradients of {data['samples']:,} images were collected once for all methods.")
    console.line(options_line(rows))
    console.line(f"Everything took {results['seconds']:.0f} s.")
    if options.out:
        console.line(f"Report: {Path(options.out) / 'report.html'}")
