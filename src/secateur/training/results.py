"""What a run has come to, read from its folder: the models it wrote, and the drop at every change of the masks."""

from pathlib import Path
from typing import Any

from ..errors import InputError
from ..manifest import MANIFEST, read_manifest
from .journal import Entry, read_journal
from .recipe import Recipe
from .recipe_file import plain, read_recipe

FORMAT = 1


def gather_run(out: str | Path) -> dict[str, Any]:
    """The document of a run: its recipe, models, changes and curves.

    Raises:
        InputError: when the folder holds no run.
    """
    out = Path(out)
    if not (out / "recipe.yaml").is_file():
        raise InputError(f"{out} holds no run: it has no recipe.yaml.")
    recipe, entries = read_recipe(out / "recipe.yaml"), read_journal(out / "metrics.csv")
    return {
        "format": FORMAT,
        "recipe": plain(recipe),
        "label": label_of(recipe),
        "models": models_of(out),
        "changes": changes_of(entries),
        "entries": [[e.epoch, e.learning_rate, e.sparsity, e.loss, e.top1, e.seconds] for e in entries],
    }


def label_of(recipe: Recipe) -> str:
    """What a table calls the run: the method, and how the rate falls."""
    rate = recipe.learning_rate
    method = "AC/DC" if recipe.acdc else "RigL" if recipe.rigl else "fine-tuning"
    if recipe.gradual is not None:
        method = recipe.gradual.method
    return f"{method}, {'cyclic' if rate.cycle else 'single'} {rate.shape}"


def models_of(out: Path) -> list[dict[str, Any]]:
    """The models that the run has written, by sparsity."""
    found = []
    for folder in sorted(path.parent for path in out.glob(f"*/{MANIFEST}")):
        manifest = read_manifest(folder)
        run = manifest["run"]
        found.append(
            {
                "folder": folder.name,
                "sparsity": manifest["sparsity"],
                "zeros": manifest["zeros"],
                "top1": run["evaluation"]["top1"],
                "loss": run["evaluation"]["loss"],
                "epoch": run["epoch"],
                "seconds": run["seconds"],
            }
        )
    return sorted(found, key=lambda model: (model["sparsity"], model["epoch"]))


def changes_of(entries: list[Entry]) -> list[dict[str, Any]]:
    """Top-1 right before and after each change of the masks."""
    changes, before = [], None
    for entry in entries:
        if entry.top1 is None:
            continue
        if entry.kind not in ("dense", "start", "epoch") and before is not None:
            changes.append({"epoch": entry.epoch, "what": entry.kind, "before": before, "after": entry.top1})
        before = entry.top1
    return changes
