"""The journal of a run for those who watch it elsewhere: TensorBoard, Weights & Biases."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import require
from .journal import Entry, Listener
from .recipe import Recipe
from .recipe_file import plain

SHOWN = ("loss", "learning_rate", "sparsity", "top1", "eval_loss")


def tensorboard(folder: Path, step: int) -> Listener:
    """Writes below `folder`; what was written there for `step` and later is forgotten."""
    require({"tensorboard": "tensorboard"}, "trackers", "--tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder), purge_step=step)

    def listen(entry: Entry) -> None:
        for name, value in _values(entry).items():
            writer.add_scalar(name, value, entry.step)
        writer.flush()

    return listen


def wandb(project: str, recipe: Recipe) -> Listener:
    """Logs to a project of Weights & Biases."""
    require({"wandb": "wandb"}, "trackers", "--wandb")
    import wandb as package

    run = package.init(project=project, config=plain(recipe))

    def listen(entry: Entry) -> None:
        run.log(_values(entry), step=entry.step)

    return listen


def _values(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if name in SHOWN and value is not None}
