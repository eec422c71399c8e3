"""Measure a model: top-1, top-5 and the loss."""

from dataclasses import dataclass

from .console import Console
from .options import option
from .shared import EvaluationOptions, ModelOptions

HELP = "measure top-1, top-5 and the loss"


@dataclass
class Options(EvaluationOptions, ModelOptions):
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..evaluation import evaluate
    from .checks import check_data
    from .sources import evaluation, load, notes

    check_data(options)
    model = load(options)
    batches = evaluation(options, model)
    with Console(options.json) as console:
        notes(console, [batches])
        found = evaluate(model, batches, track=console.track)
        notes(console, [batches])
    console.document(
        {
            "model": options.model, "top1": found.top1, "top5": found.top5, "loss": found.loss,
            "images": found.images, "seconds": found.seconds,
        }
    )  # fmt: skip
    console.table(
        f"{options.model} on {found.images:,} images",
        ["top-1 %", "top-5 %", "loss", "seconds"],
        [(f"{found.top1:.2f}", f"{found.top5:.2f}", found.loss, f"{found.seconds:.1f}")],
    )
    return 0
