"""Prune one model with several methods at several sparsities, sharing the gradients, and report which does best.

  secateur compare --model bundled --methods magnitude woodfisher cap --sparsity 0.75 0.9 --out comparison

Writes report.html (opens without a network), report.json, and the pruned models under checkpoints/. With several seeds
everything is repeated on other calibration images, and the tables show means.
"""

import time
from dataclasses import dataclass, replace

from .options import option
from .sources import CalibrationOptions, EvaluationOptions, FisherOptions, LayerOptions, ModelOptions

HELP = "compare methods on one model"


@dataclass
class Options(LayerOptions, FisherOptions, EvaluationOptions, CalibrationOptions, ModelOptions):
    methods: list[str] = option(
        ["magnitude", "magnitude:uniform", "woodfisher", "woodfisher:uniform", "cap", "cap:uniform"],
        "methods, each with an allocation or options after colons, such as cap:uniform:block=96",
    )
    sparsity: list[float] = option([0.5, 0.65, 0.75, 0.85, 0.9], "fractions of the weights to end as zeros")
    allocation: str = option("global", "for the methods that name none", choices=("global", "uniform"))
    seeds: list[int] = option([], "repeat with each of these seeds (default: --seed alone)")
    out: str | None = option(None, "folder to write; without it nothing is written")
    checkpoints: bool = option(True, "save the pruned models")
    overwrite: bool = option(False, "replace a folder that secateur wrote before")
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..allocate import check_sparsity
    from ..comparison import contender
    from ..files import check_output, new_folder
    from ..report import write_report
    from .console import Console

    for sparsity in options.sparsity:
        check_sparsity(sparsity)
    contenders = [contender(text, options.allocation, **options.said_of_fisher()) for text in options.methods]
    with Console(options.json) as console:
        if options.out is None:
            results = _results(options, contenders, None, console)
        else:
            check_output(options.out, options.overwrite)
            with new_folder(options.out, options.overwrite) as folder:
                results = _results(options, contenders, folder, console)
                write_report(results, folder)
    console.document(results)
    _print(options, results, console)
    return 0


def _results(options: Options, contenders, folder, console) -> dict:
    """Every contender at every sparsity for every seed; the pruned models go below `folder`."""
    from ..checkpoint import save
    from ..comparison import compare
    from ..evaluation import evaluate
    from .results import describe, row_of
    from .sources import calibration, describe_data, evaluation, in_memory, load, notes

    start = time.perf_counter()
    model = load(options)
    seeds = options.seeds or [options.seed]
    calibrations = {seed: calibration(replace(options, seed=seed), model) for seed in seeds}
    images = evaluation(options, model)
    notes(console, [*calibrations.values(), images])
    held = in_memory(images, console.track)
    dense, rows = evaluate(model, held, track=console.track), []
    for seed, batches in calibrations.items():
        data = describe_data(batches, images, options.augment)
        pairs = compare(
            model, batches, contenders, options.sparsity, lambda m: evaluate(m, held, track=console.track),
            layers=options.layers or None, samples_per_gradient=options.samples_per_gradient, track=console.track,
        )  # fmt: skip
        for row in console.track(pairs, "all runs", len(contenders) * len(options.sparsity)):
            name = f"{row.contender.label.replace(':', '-')}-{row.result.sparsity:g}"
            name += f"-seed{seed}" if len(seeds) > 1 else ""
            saved = f"checkpoints/{name}" if folder and options.checkpoints else None
            if saved:
                save(model, row.result, folder / saved, {"model": options.model, "data": data, "seed": seed})
            rows.append(row_of(row, seed, saved))
            console.step(f"{name}: top-1 {row.evaluation.top1:.2f} %, loss {row.evaluation.loss:.4f}")
    data = describe_data(calibrations[seeds[0]], images, options.augment)
    return describe(options, model, data, dense, rows, time.perf_counter() - start)


def _print(options: Options, results: dict, console) -> None:
    from ..report import gather, value_text

    dense, data = results["dense"], results["data"]
    points = [(point, series) for series in gather(results) for point in series.points]
    console.table(
        f"{options.model}, {data['images']:,} images; dense: top-1 {dense['top1']:.2f} %, loss {dense['loss']:.4f}",
        ["method", "sparsity", "top-1 %", "loss", "predicted increase", "seconds"],
        [
            (
                series.label,
                value_text(point.value("achieved"), 4),
                value_text(point.value("top1"), 2),
                value_text(point.value("loss"), 4),
                value_text(point.value("predicted_loss_increase"), 5),
                value_text(point.value("seconds"), 1),
            )
            for point, series in sorted(points, key=lambda pair: pair[0].sparsity)
        ],
    )
    if len({row["seed"] for row in results["rows"]}) > 1:
        console.line("Means over seeds ± standard deviation.")
    console.line(
        f"The gradients of {data['samples']:,} images were collected once for all methods;"
        f" everything took {results['seconds']:.0f} s."
    )
    if options.out:
        console.line(f"Report: {options.out}/report.html")
