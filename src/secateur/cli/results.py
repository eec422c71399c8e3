"""What `prune` and `compare` found, as the one document that is printed, stored and drawn."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone

from ..patterns import NM
from ..sparsity import plain
from .tasks import figures


def row_of(row, task: str, seed: int, saved: str | None) -> dict:
    """One row of the table: a `comparison.Row`, the seed of its images, and where its model was saved."""
    result = row.result
    layers = [
        {"name": name, "zeros": mask.numel() - int(mask.sum()), "total": mask.numel()}
        for name, mask in result.masks.items()
    ]
    return {
        "method": result.method,
        "label": row.contender.label,
        "allocation": result.allocation,
        "options": result.options,
        "seed": seed,
        "asked": plain(result.sparsity),
        "sparsity": sparsity_of(result),
        "achieved": result.achieved,
        "zeros": result.zeros,
        "total": result.total,
        **figures(task, row.evaluation),
        "predicted_loss_increase": result.predicted_loss_increase,
        "seconds": result.seconds,
        "gradients": result.gradients,
        "checkpoint": saved,
        "left_out": dict(result.left_out),
        "layers": layers,
    }


def sparsity_of(result) -> float:
    """The fraction of zeros that was asked for; what came of it, where that was a table."""
    if isinstance(result.sparsity, dict):
        return result.achieved
    return result.sparsity.sparsity if isinstance(result.sparsity, NM) else result.sparsity


def asked_text(row: dict) -> str:
    """What a row was asked for, as a cell."""
    asked = row["asked"]
    return "table" if isinstance(asked, dict) else asked if isinstance(asked, str) else f"{asked:g}"


def tell_left_out(rows: Sequence[dict], console) -> None:
    """A line for every layer that could not take its pattern."""
    found = ((asked_text(row), *layer) for row in rows for layer in row["left_out"].items())
    for asked, name, reason in dict.fromkeys(found):
        console.line(f"{name} stays as it is, not {asked}: {reason}.")


def options_line(rows: Sequence[dict]) -> str:
    """The options of every method in the rows: the user's, the family's and its own."""
    said = dict.fromkeys(" ".join([row["method"], options_text(row["method"], row["options"])]) for row in rows)
    return f"Options: {'; '.join(said)}."


def options_text(method: str, options: dict) -> str:
    """Those that can be chosen, as they are given on the command line."""
    from ..solvers import options_of

    return " ".join(f"{name}={str(options[name]).lower()}" for name in options_of(method)) or "none"


def describe(options, model, data: dict, dense, rows: Sequence[dict], seconds: float) -> dict:
    """The whole document of a comparison."""
    import torch

    from .. import __version__, native
    from .doctor import EXTRAS, PACKAGES, installed, processor

    return {
        "format": 1,
        "command": shlex.join(["secateur", *sys.argv[1:]]),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "model": {
            "name": options.model,
            "parameters": sum(p.numel() for p in model.parameters()),
            "prunable": rows[0]["total"],
        },
        "data": data,
        "metric": next(iter(dense.METRICS)),
        "dense": figures(options.task, dense),
        "rows": list(rows),
        "seconds": seconds,
        "settings": asdict(options),
        "versions": {"secateur": __version__, **{name: installed(name) for name in (*PACKAGES, *EXTRAS)}},
        "machine": {
            "processor": processor(),
            "threads": torch.get_num_threads(),
            "core": native.describe()["isa"],
            "accelerator": torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else None,
        },
    }
