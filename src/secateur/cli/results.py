"""What `prune` and `compare` found, as the one document that is printed, stored and drawn."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone


def row_of(row, seed: int, saved: str | None) -> dict:
    """One row of the table: a `comparison.Row`, the seed of its images, and where its model was saved."""
    result, found = row.result, row.evaluation
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
        "sparsity": result.sparsity,
        "achieved": result.achieved,
        "zeros": result.zeros,
        "total": result.total,
        "top1": found.top1 if found else None,
        "top5": found.top5 if found else None,
        "loss": found.loss if found else None,
        "predicted_loss_increase": result.predicted_loss_increase,
        "seconds": result.seconds,
        "gradients": result.gradients,
        "checkpoint": saved,
        "layers": layers,
    }


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
    from .doctor import PACKAGES, installed, processor

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
        "dense": {"top1": dense.top1, "top5": dense.top5, "loss": dense.loss},
        "rows": list(rows),
        "seconds": seconds,
        "settings": asdict(options),
        "versions": {"secateur": __version__, **{name: installed(name) for name in PACKAGES}},
        "machine": {
            "processor": processor(),
            "threads": torch.get_num_threads(),
            "core": native.describe()["isa"],
            "accelerator": torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else None,
        },
    }
