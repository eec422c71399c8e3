"""What depends on the task, classification or detection: which models do it, how they are measured, how that reads."""

from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from .. import detection
from ..errors import InputError, require
from ..evaluation import Evaluation, evaluate
from ..hf_models import is_detector
from ..progress import Track

DETECTION = "detection"
Kind = type[Evaluation] | type[detection.DetectionEvaluation]


def check_installed(task: str) -> None:
    """Whether what the task takes is installed."""
    if task == DETECTION:
        packages = {"transformers": "transformers", "scipy": "scipy", "faster_coco_eval": "faster-coco-eval"}
        require(packages, "detection", "--task detection")


def check_task(task: str, model: nn.Module) -> None:
    """Whether the model is one for it."""
    name = type(model).__name__
    if task == DETECTION and not is_detector(model):
        raise InputError(f"A {name} finds no objects, so --task detection has nothing to measure; give a detector.")
    if task != DETECTION and is_detector(model):
        raise InputError(f"A {name} finds objects in images; pass --task detection, and a folder in COCO's format.")


def kind_of_evaluation(task: str) -> Kind:
    return detection.DetectionEvaluation if task == DETECTION else Evaluation


def measure(task: str, model: nn.Module, batches: Iterable, track: Track) -> Evaluation | detection.DetectionEvaluation:
    """The model's accuracy on the batches."""
    return (detection.evaluate if task == DETECTION else evaluate)(model, batches, track=track)


def figures(task: str, found) -> dict[str, float | None]:
    """The metrics of the task and the loss; None where nothing was measured."""
    return {name: getattr(found, name, None) for name in (*kind_of_evaluation(task).METRICS, "loss")}


def in_words(task: str, found: Mapping) -> str:
    """ "top-1 93.38 %, loss 0.2770"."""
    name, title = next(iter(kind_of_evaluation(task).METRICS.items()))
    return f"{title} {found[name]:.2f} %, loss {found['loss']:.4f}"


def columns(task: str, names: Sequence[str] = ()) -> dict[str, str]:
    """{metric: heading} of those that stand in tables of runs, or of `names`."""
    kind = kind_of_evaluation(task)
    return {name: f"{kind.METRICS[name]} %" for name in names or kind.IN_TABLES}


def in_cells(found: Mapping, names: Iterable[str]) -> list[str | None]:
    """Metrics with two digits, whatever their size."""
    return [None if found[name] is None else f"{found[name]:.2f}" for name in names]
