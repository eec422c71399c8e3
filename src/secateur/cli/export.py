"""Write a saved model for elsewhere: as ONNX, as dense safetensors, or as safetensors without the zeros.

  secateur export pruned --onnx model.onnx --dense dense.safetensors --sparse sparse.safetensors

The ONNX file has a free batch size; it is run in onnxruntime on random images, and on those of --data-dir or --dataset,
and is not written when its answers differ from the model's or a zero is missing. The sparse file is in the bitmask
layout of compressed-tensors and is read by secateur.load_sparse.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from .console import Console
from .options import option
from .shared import EvaluationOptions, ModelOptions

HELP = "write a saved model as ONNX, or without its zeros"


@dataclass
class Options(EvaluationOptions, ModelOptions):
    model: str = option(
        ..., "folder that secateur wrote, timm name, hf-hub:…, hf:…, local-dir:… or bundled", positional=True
    )
    onnx: str | None = option(None, "write ONNX here", metavar="FILE.onnx")
    dense: str | None = option(None, "write all weights here", metavar="FILE.safetensors")
    sparse: str | None = option(None, "write the weights without their zeros here", metavar="FILE.safetensors")
    opset: int = option(18, "of the ONNX file", least=1)
    tolerance: float = option(1e-4, "largest difference of an ONNX output, in units of the largest output", least=0)
    sparse_initializers: bool = option(
        False, "leave zeros out of the ONNX file too, where two thirds are; onnxruntime reads that, others may not"
    )
    eval_samples: int | None = option(32, "how many, the same ones each time", least=1, metavar="N")
    eval_batch_size: int = option(16, "how many go through the model at once", least=1)
    overwrite: bool = option(False, "replace files that are there already")
    json: bool = option(False, "print one JSON document")

    def files(self) -> dict[str, str]:
        """What was asked for: kind → file."""
        asked = {"onnx": self.onnx, "dense": self.dense, "sparse": self.sparse}
        return {kind: file for kind, file in asked.items() if file is not None}


def run(options: Options) -> int:
    from ..checkpoint import state_of
    from ..export import export_dense, export_sparse
    from ..layers import prunable_weights
    from .sources import saved_model

    _check(options)
    with Console(options.json) as console:
        model = saved_model(options)
        dense = sum(tensor.nbytes for tensor in state_of(model).values())
        files: dict[str, dict[str, Any]] = {}
        if options.dense is not None:
            files["dense"] = {"bytes": export_dense(model, options.dense)}
        if options.sparse is not None:
            files["sparse"] = {"bytes": export_sparse(model, options.sparse)}
        if options.onnx is not None:
            files["onnx"] = _write_onnx(options, model, console)
    weights = [weight.parameter for weight in prunable_weights(model).values()]
    zeros, total = sum(int((w == 0).sum()) for w in weights), sum(w.numel() for w in weights)
    for kind, facts in files.items():
        facts |= {"path": options.files()[kind], "ratio": facts["bytes"] / dense}
    console.document({"model": options.model, "zeros": zeros, "total": total, "dense_bytes": dense, "files": files})
    _print(options, console, files, zeros, total)
    return 0


def _check(options: Options) -> None:
    """What can be known before the model is loaded."""
    from ..files import check_file
    from .checks import check_data

    files = options.files()
    if not files:
        raise InputError("Nothing to write: give --onnx FILE, --dense FILE or --sparse FILE.")
    for kind, file in files.items():
        check_file(file, options.overwrite)
        ending = ".onnx" if kind == "onnx" else ".safetensors"
        if Path(file).suffix != ending:
            raise InputError(f"--{kind} is {file}; give a name that ends in {ending}.")
    if len({Path(file).resolve() for file in files.values()}) < len(files):
        raise InputError("Two files were given the same name; give each its own.")
    check_data(options)


def _write_onnx(options: Options, model, console: Console) -> dict[str, Any]:
    from ..export import export_onnx
    from .sources import evaluation, notes

    assert options.onnx is not None
    images = evaluation(options, model) if options.names_data() else None
    notes(console, [images])
    done = export_onnx(model, options.onnx, images, options.opset, options.tolerance, options.sparse_initializers)
    return {
        "bytes": done.bytes, "opset": done.opset, "difference": done.difference, "images": done.images,
        "zeros": done.zeros,
    }  # fmt: skip


def _print(options: Options, console: Console, files: dict[str, dict], zeros: int, total: int) -> None:
    from ..units import readable

    console.table(
        f"{options.model}: {zeros:,} zeros of {total:,} weights of linear layers and convolutions",
        ["file", "kind", "size", "of dense"],
        [(f["path"], kind, readable(f["bytes"]), f"{100 * f['ratio']:.1f} %") for kind, f in files.items()],
    )
    if "onnx" in files:
        found = files["onnx"]
        console.line(
            f"ONNX (opset {found['opset']}): outputs on {found['images']} images differ by at most"
            f" {found['difference']:.1e} of the largest; all {found['zeros']:,} zeros are in the file."
        )
