"""The certificate of a run directory: the zeros are counted again, from the files, without building the model.

Weights, masks and manifest are three accounts of the same zeros; any difference between them, a group that breaks its
N:M pattern, a file that is damaged or not the one that was saved, and a weight that is not a number, is a problem.
Time: one reading of every file.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from .checkpoint import FLOATS, load_masks
from .errors import InputError
from .manifest import FILES, MANIFEST, MASKS, MODEL, described_files, is_sealed, read_manifest
from .patterns import UNSTRUCTURED, kept_by_group, place_of, read_pattern, summary, why_not
from .tensor_files import describe_file, read_tensors

Read = TypeVar("Read")


@dataclass(frozen=True)
class Certificate:
    """What was counted in a run directory, and every sentence that speaks against it."""

    zeros: int
    total: int
    sparsity: float
    pattern: str
    groups: dict[str, dict[str, int]]  # N:M pattern → its groups, and how many of them hold it
    ok: bool
    layers: list[dict[str, Any]]
    problems: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the fields' names."""
        return asdict(self)


def inspect(folder: str | Path) -> Certificate:
    """Count the zeros of a run directory again and compare them with its masks and its manifest.

    Returns:
        The certificate; `ok` is False, and `problems` says why, whenever anything differs or cannot be read.
    Raises:
        InputError: when the folder has no secateur.json.

    >>> from secateur import load_model, prune_, save
    >>> model = load_model("bundled")
    >>> save(model, prune_(model, None, "magnitude", 0.75), "pruned")
    >>> certificate = inspect("pruned")
    >>> certificate.ok, certificate.zeros, certificate.total
    (True, 884736, 1179648)
    """
    folder = _existing(folder)
    if not (folder / MANIFEST).is_file():
        raise InputError(f"{folder} is no run directory: it should hold {MANIFEST}, {', '.join(FILES)}.")
    return _certify(folder)


def inspect_all(folder: str | Path) -> dict[str, Certificate]:
    """The certificates of a run directory, or of those beneath (FOLDER/NAME, FOLDER/checkpoints/NAME).

    Returns:
        Path below `folder` ("." for the folder itself) → certificate.
    Raises:
        InputError: when there is none.
    """
    folder = _existing(folder)
    if (folder / MANIFEST).is_file():
        return {".": _certify(folder)}
    found = [f for pattern in ("*", "checkpoints/*") for f in folder.glob(pattern) if not f.name.startswith(".")]
    found = [f for f in found if any((f / name).is_file() for name in (MANIFEST, MASKS))]
    if not found:
        raise InputError(f"{folder} holds no run directory: one has {MANIFEST}, {', '.join(FILES)}.")
    return {f.relative_to(folder).as_posix(): _certify(f) for f in sorted(found)}


def _existing(folder: str | Path) -> Path:
    if not Path(folder).is_dir():
        raise InputError(f"There is no folder {folder}; give one that secateur wrote.")
    return Path(folder)


def _certify(folder: Path) -> Certificate:
    problems: list[str] = []
    manifest = _unless_unreadable(read_manifest, folder, problems) or {}
    if manifest and not is_sealed(folder):
        problems.append(f"{MANIFEST} was changed after it was written: its own SHA-256 differs.")
    for name in described_files(manifest) if manifest else ():
        problems += _file_problems(folder / name, manifest["files"][name])
    weights = _unless_unreadable(read_tensors, folder / MODEL, problems)
    masks = _unless_unreadable(load_masks, folder, problems)
    layers: list[dict[str, Any]] = []
    if weights is not None:
        names = dict.fromkeys((*(masks or ()), *(layer["name"] for layer in manifest.get("layers", ()))))
        counted = {name for name in names if name in weights and weights[name].dtype in FLOATS}
        recorded = {row["name"]: row for row in manifest.get("layers", ())}
        for name in (name for name in names if name in counted):
            held, found = _held(name, weights[name], (masks or {}).get(name), recorded.get(name, {}))
            layers.append(_count(name, weights[name]) | held)
            problems += found
        problems += [
            f"{name}: {MODEL} has no floating-point weight of this name." for name in names if name not in counted
        ]
        problems += [p for layer in layers for p in _mask_problems(layer, weights[layer["name"]], masks, manifest)]
        problems += [p for name, weight in weights.items() for p in _value_problems(name, weight)]
    zeros, total = (sum(layer[key] for layer in layers) for key in ("zeros", "total"))
    problems += _count_problems(manifest, layers, zeros, total) if manifest else []
    problems = list(dict.fromkeys(problems))
    pattern = str(manifest.get("pattern", "unknown"))[:40]
    sparsity = zeros / total if total else 0.0
    return Certificate(zeros, total, sparsity, pattern, _by_pattern(layers), not problems, layers, problems)


def _file_problems(path: Path, recorded: dict[str, Any]) -> Iterator[str]:
    try:
        found = describe_file(path)
    except InputError as error:
        yield str(error)
        return
    if found["bytes"] != recorded.get("bytes"):
        yield f"{path.name} has {found['bytes']} bytes, {MANIFEST} says {recorded.get('bytes')}."
    if found["sha256"] != recorded.get("sha256"):
        yield f"{path.name} is not the file that was saved: its SHA-256 differs."


def _count(name: str, weight: torch.Tensor) -> dict[str, Any]:
    """One row of the certificate."""
    return {"name": name, "zeros": int((weight == 0).sum()), "total": weight.numel()}


def _held(
    name: str, weight: torch.Tensor, mask: torch.Tensor | None, recorded: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """What a row says of the layer's pattern, and what speaks against it: every group counted, in weight and mask."""
    text = recorded.get("pattern", UNSTRUCTURED)[:40]
    row = {"pattern": text, "groups": None, "held": None, "left_out": recorded.get("left_out")}
    if text == UNSTRUCTURED:
        return row, []
    try:
        pattern = read_pattern(text)
    except InputError:
        return row, [f"{name}: the pattern {text!r} is none that can be checked."]
    reason = why_not(pattern, weight.shape[1]) if weight.dim() > 1 else "it has no input channels"
    if reason:
        return row, [f"{name} cannot be {pattern}: {reason}."]
    kept = kept_by_group(weight != 0, pattern)
    if mask is not None and mask.shape == weight.shape:
        kept = kept.maximum(kept_by_group(mask, pattern))
    row |= {"groups": kept.numel(), "held": int((kept <= pattern.keep).sum())}
    if row["held"] == row["groups"]:
        return row, []
    first = (kept > pattern.keep).nonzero()[0]
    return row, [
        f"{name}: {row['groups'] - row['held']} of {row['groups']} groups break {pattern}, the first at"
        f" {place_of(first, pattern)}, where {int(kept[tuple(first)])} weights are kept."
    ]


def _by_pattern(layers: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """{pattern: its groups in all layers, and how many of them hold it}."""
    sums: dict[str, dict[str, int]] = {}
    for layer in (layer for layer in layers if layer["groups"] is not None):
        found = sums.setdefault(layer["pattern"], {"groups": 0, "held": 0})
        for key in found:
            found[key] += layer[key]
    return sums


def _value_problems(name: str, weight: torch.Tensor) -> Iterator[str]:
    if weight.dtype in FLOATS and (broken := int((~weight.isfinite()).sum())):
        yield f"{name}: {broken} weights are NaN or infinite."


def _mask_problems(layer: dict, weight: torch.Tensor, masks: dict | None, manifest: dict) -> Iterator[str]:
    """How one layer's weight and mask differ; nothing where the masks could not be read, which is told already."""
    if masks is None:
        return
    name = layer["name"]
    if name not in masks:
        yield f"{name}: {MASKS} has no mask for this layer, {MANIFEST} lists it."
    elif masks[name].shape != weight.shape:
        yield f"{name}: the mask has shape {list(masks[name].shape)}, the weight {list(weight.shape)}."
    else:
        mask = masks[name]
        if left := int((weight[~mask] != 0).sum()):
            yield f"{name}: {left} weights that the mask drops are not zero."
        recorded = [row.get("kept_zeros") for row in manifest.get("layers", ()) if row["name"] == name]
        if recorded and recorded[0] != (kept_zeros := int((weight[mask] == 0).sum())):
            yield f"{name}: {kept_zeros} weights that the mask keeps are zero, {MANIFEST} says {recorded[0]!r:.40}."


def _count_problems(manifest: dict[str, Any], layers: list[dict], zeros: int, total: int) -> Iterator[str]:
    recorded = {row["name"]: (row["zeros"], row["total"]) for row in manifest["layers"]}
    if len(recorded) != len(manifest["layers"]):
        yield f"{MANIFEST} lists a layer twice."
    for name, *counted in ((layer["name"], layer["zeros"], layer["total"]) for layer in layers):
        if name not in recorded:
            yield f"{name}: {MANIFEST} does not list this layer, {MASKS} does."
        elif tuple(counted) != recorded[name]:
            yield f"{name}: {_of(*counted)} weights are zero, {MANIFEST} says {_of(*recorded[name])}."
    if (zeros, total) != (manifest["zeros"], manifest["total"]):
        yield f"{_of(zeros, total)} weights are zero, {MANIFEST} says {_of(manifest['zeros'], manifest['total'])}."
    if manifest.get("sparsity") != (zeros / total if total else 0.0):
        yield f"The sparsity is {zeros / max(total, 1)}, {MANIFEST} says {manifest.get('sparsity')!r:.40}."
    if manifest.get("pattern") != summary(layers):
        yield f"The pattern is {summary(layers)}, {MANIFEST} says {manifest.get('pattern')!r:.40}."


def _of(zeros: int, total: int) -> str:
    return f"{zeros} of {total}"


def _unless_unreadable(read: Callable[[Path], Read], path: Path, problems: list[str]) -> Read | None:
    try:
        return read(path)
    except InputError as error:
        problems.append(str(error))
        return None
