"""Prune a model to one or several sparsities and save the results.

  secateur prune --model vit_tiny_patch16_224 --data-dir images --method cap --sparsity 0.75 --out pruned

A sparsity is the fraction of zeros, such as 0.5, or a pattern N:M, such as 2:4: at most N of M neighbouring input
channels are not zero. One sparsity is saved in the output folder itself, several in a folder each below it (0.5, 2of4,
…), all from the same gradients. A saved folder opens in plain timm: timm.create_model("local-dir:FOLDER",
pretrained=True), and that of a model of transformers in its from_pretrained. With --task detection the model is a
detector such as DETR.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .console import Console
from .options import option
from .shared import CalibrationOptions, EvaluationOptions, FisherOptions, LayerOptions, ModelOptions

HELP = "prune a model and save it"


@dataclass
class Options(LayerOptions, FisherOptions, EvaluationOptions, CalibrationOptions, ModelOptions):
    out: str = option(..., "folder to write", metavar="FOLDER")
    method: str = option("cap", "a method of `secateur methods`, with options after colons, such as cap:block=96")
    sparsity: list[float | str] = option([0.5], "fractions of the weights to end as zeros, or N:M patterns such as 2:4",
                                         metavar="FRACTION|N:M")  # fmt: skip
    allocation: str = option("global", "one threshold for all layers, or the same sparsity in each",
                             choices=("global", "uniform"))  # fmt: skip
    table: str | None = option(None, "YAML file of `layer pattern: sparsity` lines, in place of --sparsity",
                               metavar="FILE")  # fmt: skip
    recomputations: int = option(1, "times that the Fisher is made on the way to each sparsity", least=1)
    recalibrate: bool = option(True, "measure batch normalisation's statistics again")
    evaluate: bool = option(True, "measure the model before and after")
    overwrite: bool = option(False, "replace a folder that secateur wrote before")
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..comparison import contender
    from ..files import check_output
    from .checks import check_data, check_gradients, goals_of
    from .results import options_line, tell_left_out
    from .tasks import columns, in_words

    goals = goals_of(options.sparsity, options.table)
    chosen = contender(options.method, options.allocation, **options.said_of_fisher())
    check_gradients(options, options)
    check_data(options)
    check_output(options.out, options.overwrite)
    with Console(options.json) as console:
        document = _prune(options, chosen, goals, console)
    console.document(document)
    if dense := document["dense"]:
        console.line(f"Dense: {in_words(options.task, dense)} on {dense['images']:,} images.")
    metrics = columns(options.task)
    console.table(
        f"{options.model} pruned by {chosen.label}",
        ["asked", "sparsity", "zeros", *metrics.values(), "loss", "predicted\nincrease", "seconds", "saved in"],
        [_shown(row, metrics) for row in document["rows"]],
    )
    tell_left_out(document["rows"], console)
    console.line(options_line(document["rows"]))
    return 0


def _shown(row: dict, metrics: Iterable[str]) -> list:
    from .results import asked_text
    from .tasks import in_cells

    predicted, seconds = row["predicted_loss_increase"], f"{row['seconds']:.1f}"
    cells = [*in_cells(row, metrics), row["loss"], predicted, seconds, row["checkpoint"]]
    return [asked_text(row), row["achieved"], row["zeros"], *cells]


def _prune(options: Options, chosen, goals: list, console) -> dict:
    from dataclasses import asdict

    from ..checkpoint import save
    from ..comparison import fitted
    from ..files import new_folder
    from .checks import check_goals, check_room, name_of
    from .results import row_of
    from .sources import calibration, describe_data, evaluation, in_memory, load, notes
    from .tasks import measure as measured

    model = load(options)
    chosen = fitted(chosen, model, paper=options.settings == "paper")
    check_goals(model, options.layers, [chosen], goals)
    check_room(options.out, model, len(goals))
    calls_for_data = chosen.solver.statistic is not None or options.names_data()
    batches = calibration(options, model) if calls_for_data else None
    images = evaluation(options, model) if options.evaluate else None
    notes(console, [batches, images])
    held = in_memory(images, console.track) if images else None

    def measure(pruned):
        return measured(options.task, pruned, held, console.track) if held else None

    def manifest():  # once the images were read: some may have been left out
        data = describe_data(batches, images, options)
        return {"model": options.model, "data": data, "seed": options.seed}

    dense, rows = measure(model), []
    pruned = _pruned(options, chosen, goals, model, batches, measure, console)
    if len(goals) == 1:
        for row in pruned:
            save(model, row.result, options.out, manifest(), options.overwrite)
            rows.append(row_of(row, options.task, options.seed, options.out))
    else:
        with new_folder(options.out, options.overwrite) as folder:
            for row in pruned:
                name = name_of(row.result.sparsity)
                save(model, row.result, folder / name, manifest())
                rows.append(row_of(row, options.task, options.seed, str(Path(options.out) / name)))
    notes(console, [batches, images])
    return {"model": options.model, "out": options.out, "dense": asdict(dense) if dense else None, "rows": rows}


def _pruned(options: Options, chosen, goals: list, model, batches, measure, console) -> Iterator:
    """A row for every goal, while the model is as pruned for it; it starts dense each time."""
    from ..comparison import Row, compare
    from ..prune import prune_

    common = {
        "layers": options.layers or None,
        "samples_per_gradient": options.samples_per_gradient,
        "recalibrate": options.recalibrate,
        "resources": options.resources(),
        "track": console.track,
    }
    if options.recomputations == 1:
        yield from compare(model, batches, [chosen], goals, measure, **common)
        return
    dense = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for goal in goals:
        model.load_state_dict(dense)
        result = prune_(
            model, batches, chosen.solver, goal,
            allocation=chosen.allocation, recomputations=options.recomputations, **common,
        )  # fmt: skip
        yield Row(chosen, result, measure(model))
