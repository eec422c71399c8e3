"""Checkpoints that a killed run goes on from to the same bits: model, masks, optimizer, averaged weights, the step.

    model.safetensors   optimizer.safetensors   masks.safetensors   average.safetensors   secateur.json (sealed)

A folder appears whole or not at all; secateur.json holds the SHA-256 of each file and of itself, and a checkpoint whose
hashes differ is never read. Random states need no file: whatever is drawn in a step follows from (seed, step), as do
the images, so the step stands for schedule, sampler and generators.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import state_of
from ..errors import InputError, NumericsError
from ..files import new_folder
from ..manifest import MANIFEST, MASKS, MODEL, is_sealed, write_manifest
from ..strict_json import read_json
from ..tensor_files import describe_file, read_tensors, write_tensors
from .recipe import Recipe
from .recipe_file import plain, write_recipe
from .run import Run

FOLDER, RECIPE = "resume", "recipe.yaml"
OPTIMIZER, AVERAGE = "optimizer.safetensors", "average.safetensors"
PLAIN = (bool, int, float, str)
FREE = ("about", "checkpoints", "data.workers")  # what another value of changes no bit


def write_checkpoint(run: Run) -> None:
    """Write what the run can go on from, and drop all but the last few."""
    if run.is_first:
        tensors, scalars = _state(run)
        needed = sum(t.numel() * t.element_size() for group in tensors.values() for t in group.values())
        path = run.out / FOLDER / f"step-{run.step:08d}{'-changed' if run.changed else ''}"
        with new_folder(path, overwrite=True, needed=needed) as new:
            for name, group in tensors.items():
                write_tensors(group, new / name, {"format": "pt"})
            files = {name: describe_file(new / name) for name in tensors}
            write_manifest(new, {"checkpoint": 1, **scalars, "metrics": run.journal.kept(), "files": files})
        for old in checkpoints(run.out)[run.recipe.checkpoints.keep :]:
            (old / MANIFEST).unlink(missing_ok=True)  # first: a folder half removed is no checkpoint
            shutil.rmtree(old)
    run.processes.wait()


def checkpoints(out: str | Path) -> list[Path]:
    """The folders of a run's checkpoints, the latest first."""
    return sorted((Path(out) / FOLDER).glob("step-*"), reverse=True)


def begin_(run: Run) -> Path | None:
    """A new folder, or the one that is there taken up; returns the checkpoint that the run goes on from."""
    if run.processes.agreed(run.out.exists()):  # the first process may have made it since the others looked
        return resume_(run)
    start_(run)
    return None


def start_(run: Run) -> None:
    """Make the folder of a new run, with its recipe."""
    if run.is_first:
        with new_folder(run.out) as folder:
            write_recipe(run.recipe, folder / RECIPE)
            (folder / FOLDER).mkdir()
        run.journal.start()
    run.processes.wait()


def resume_(run: Run) -> Path | None:
    """Put the run where its last whole checkpoint was; None where there is none, and it starts from the beginning.

    Raises:
        InputError: when the folder is another recipe's.
    """
    found = next((path for path in checkpoints(run.out) if _is_whole(path)), None)
    found = None if (name := run.processes.agreed(found.name if found else None)) is None else run.out / FOLDER / name
    if found is not None:
        state = read_json(found / MANIFEST)
        check_same_recipe(run.recipe, state["recipe"], run.out)
        _restore_(run, found, state)
    if run.is_first:
        for part in [*run.out.glob(".*.part"), *(run.out / FOLDER).glob(".*.part")]:  # of writes that were cut short
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        if found is None:
            run.journal.start()
        else:
            run.journal.cut(state["metrics"])
    run.processes.wait()
    return found


def check_same_recipe(recipe: Recipe, before: Mapping[str, Any], out: Path) -> None:
    """Raise InputError where a run that is taken up would go on as another one."""
    now, then = _flat(plain(recipe)), _flat(before)
    for key in sorted(now.keys() | then.keys()):
        if now.get(key) != then.get(key) and not key.startswith(FREE):
            raise InputError(
                f"{out} holds a run with {key}: {then.get(key)!r}, and the recipe now says {now.get(key)!r}; take it up"
                " with the same recipe, or name another folder."
            )


def _is_whole(path: Path) -> bool:
    """Whether every file is the one that was written."""
    try:
        files = read_json(path / MANIFEST)["files"]
        return is_sealed(path) and all(describe_file(path / name) == said for name, said in files.items())
    except (InputError, KeyError, AttributeError):
        return False


def _state(run: Run) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """{file: tensors}, and what JSON holds."""
    moments, numbers = _taken_apart(run.optimizer.state_dict())
    tensors = {MODEL: state_of(run.model), OPTIMIZER: moments, MASKS: run.keeper.state_dict()}
    if run.average is not None:
        tensors[AVERAGE] = state_of(run.average.module)
    for name, tensor in tensors[MODEL].items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise NumericsError(
                f"{name} holds NaN or infinity at {run.where}; try a lower learning_rate.highest. The last checkpoint"
                " is as it was."
            )
    scaler = run.accelerator.scaler
    return tensors, {
        "step": run.step,
        "changed": run.changed,
        "seconds": run.seconds,
        "optimizer": numbers,
        "scaler": scaler.state_dict() if scaler is not None else None,
        "recipe": plain(run.recipe),
    }


def _restore_(run: Run, path: Path, state: Mapping[str, Any]) -> None:
    run.model.load_state_dict(read_tensors(path / MODEL))
    run.optimizer.load_state_dict(
        _put_together(read_tensors(path / OPTIMIZER), state["optimizer"], run.optimizer.state_dict()["param_groups"])
    )
    run.keeper.load_state_dict(read_tensors(path / MASKS))
    if run.average is not None:
        run.average.module.load_state_dict(read_tensors(path / AVERAGE))
    if run.accelerator.scaler is not None and state["scaler"]:
        run.accelerator.scaler.load_state_dict(state["scaler"])
    run.step, run.changed, run.seconds = state["step"], state["changed"], state["seconds"]


def _taken_apart(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as tensors by name, and the rest.

    Raises:
        InputError: when it holds something that neither safetensors nor JSON can.
    """
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous().clone()
            elif value is None or isinstance(value, PLAIN):
                numbers.setdefault(str(index), {})[name] = value
            else:
                raise InputError(
                    f"The optimizer keeps a {type(value).__name__} ({name}), which a checkpoint without pickle cannot"
                    " hold; choose another, such as adamw."
                )
    groups = [{k: v for k, v in group.items() if isinstance(v, PLAIN)} for group in state["param_groups"]]
    return tensors, {"numbers": numbers, "groups": groups}


def _put_together(
    tensors: Mapping[str, Tensor], rest: Mapping[str, Any], groups: list[dict[str, Any]]
) -> dict[str, Any]:
    """What `_taken_apart` was given; `groups` are the new optimizer's, which say what JSON has no word for."""
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in rest["numbers"].items()}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    return {"state": state, "param_groups": [new | old for new, old in zip(groups, rest["groups"], strict=True)]}


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """{"a.b": value} of mappings within mappings, without what is None."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{before}{key}.") if isinstance(item, Mapping) else {f"{before}{key}": item}
    return {key: item for key, item in flat.items() if item is not None}
