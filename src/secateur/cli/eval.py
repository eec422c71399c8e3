"""Measure a model: top-1, top-5 and the loss of a classifier, COCO's average precisions and the loss of a detector."""

from dataclasses import dataclass

from .console import Console
from .options import option
from .shared import EvaluationOptions, ModelOptions

HELP = "measure a model"


@dataclass
class Options(EvaluationOptions, ModelOptions):
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from .checks import check_data
    from .sources import evaluation, load, notes
    from .tasks import columns, figures, in_cells, kind_of_evaluation, measure

    check_data(options)
    model = load(options)
    batches = evaluation(options, model)
    with Console(options.json) as console:
        notes(console, [batches])
        found = measure(options.task, model, batches, console.track)
        notes(console, [batches])
    values = figures(options.task, found)
    console.document({"model": options.model, **values, "images": found.images, "seconds": found.seconds})
    shown = columns(options.task, tuple(kind_of_evaluation(options.task).METRICS))
    console.table(
        f"{options.model} on {found.images:,} images",
        [*shown.values(), "loss", "seconds"],
        [(*in_cells(values, shown), found.loss, f"{found.seconds:.1f}")],
    )
    return 0
