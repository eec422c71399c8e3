"""Count the zeros in a saved model's file, layer by layer, and compare them with its masks and its manifest.

Exits with 1 when anything differs. A folder of several models is inspected one by one.
"""

from dataclasses import dataclass
from pathlib import Path

from .console import Console
from .options import option

HELP = "certify the zeros of a saved model"


@dataclass
class Options:
    folder: str = option(..., "folder that `secateur prune`, `compare` or `train` wrote", positional=True)
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..certificate import MANIFEST, inspect, inspect_all

    console, folder = Console(options.json), Path(options.folder)
    if (folder / MANIFEST).is_file() or not folder.is_dir():
        certificate = inspect(folder)
        console.document(certificate.as_dict())
        _print(console, str(folder), certificate)
        return 0 if certificate.ok else 1
    certificates = inspect_all(folder)
    console.document(
        {
            "ok": all(c.ok for c in certificates.values()),
            "checkpoints": [{"path": path, **c.as_dict()} for path, c in certificates.items()],
        }
    )
    for path, certificate in certificates.items():
        _print(console, path, certificate)
    return 0 if all(c.ok for c in certificates.values()) else 1


def _print(console: Console, name: str, certificate) -> None:
    console.table(
        f"Zeros of {name}",
        ["layer", "zeros", "weights", "sparsity", "pattern"],
        [
            (layer["name"], layer["zeros"], layer["total"], layer["zeros"] / layer["total"], layer["pattern"])
            for layer in certificate.layers
        ],
    )
    for pattern, found in certificate.groups.items():
        console.line(f"{pattern} held in {found['held']:,} of {found['groups']:,} groups.")
    for layer in (layer for layer in certificate.layers if layer["left_out"]):
        console.line(f"{layer['name']} was left out: {layer['left_out']}.")
    verdict = "the file, the masks and the manifest agree" if certificate.ok else "NOT what its manifest says"
    console.line(
        f"{certificate.zeros:,} zeros of {certificate.total:,} ({100 * certificate.sparsity:.4f} %),"
        f" {certificate.pattern}: {verdict}."
    )
    for problem in certificate.problems:
        console.line(f"  {problem}")
