"""A model as one ONNX file with a free batch size, whose answers and zeros are checked before the file appears.

torch.onnx traces the model; onnxruntime then runs the bytes that would be written, on the same images as the model. A
file that answers differently, or has lost a zero on the way, is not written.
"""

import io
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import batch_inputs
from ..errors import InputError, NumericsError, check_whole, require
from ..files import write_atomically
from ..hf_models import is_detector
from ..layers import prunable_weights
from ..models import input_shape
from ..modes import evaluating
from .sparse_onnx import arrays_of, with_sparse_weights

OPSET = 18  # what torch's exporter writes without converting
LIMIT = 2**31 - 2**20  # bytes of one protobuf message


@dataclass(frozen=True)
class OnnxExport:
    """What was written, and how it was checked."""

    bytes: int
    opset: int
    difference: float  # the largest from the model's outputs, in units of the largest output
    images: int  # that it was measured on
    zeros: int  # of the model's linear and convolution weights, all of them in the file


class _Logits(nn.Module):
    """A classifier that gives one tensor, whatever it is wrapped in."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.model(images)
        return getattr(outputs, "logits", outputs)


def export_onnx(
    model: nn.Module,
    file: str | Path,
    batches: Iterable | None = None,
    opset: int = OPSET,
    tolerance: float = 1e-4,
    sparse_weights: bool = False,
) -> OnnxExport:
    """Write the model as ONNX: input `images` (batch, channels, height, width), output `logits`.

    Args:
        batches: of (images, labels), to check the answers on besides random images.
        tolerance: how far an output may be from the model's, in units of the largest output.
        sparse_weights: store weights of more than two thirds zeros as sparse initializers, which onnxruntime reads and
            others may not.
    Raises:
        InputError: a package is missing, the model cannot be traced, or the file would not do what the model does.
        NumericsError: outputs that are NaN or infinite.

    >>> from secateur import load_model
    >>> export_onnx(load_model("bundled"), "bundled.onnx").difference < 1e-5
    True
    """
    _check(model, opset)
    require({name: name for name in ("onnx", "onnxscript", "onnxruntime")}, "onnx", "Writing ONNX")
    with evaluating(model), torch.inference_mode(False), torch.no_grad():
        traced = _trace(model, opset)
        found = next(entry.version for entry in traced.opset_import if not entry.domain)
        if found != opset:
            raise InputError(f"torch's exporter wrote opset {found}, not {opset}; ask for {OPSET}, its own.")
        zeros = _check_zeros(model, traced)
        data = (with_sparse_weights(traced) if sparse_weights else traced).SerializeToString()
        difference, images = _largest_difference(model, data, batches)
    if not difference <= tolerance:
        raise InputError(
            f"{file} was not written: its outputs differ from the model's by {difference:.2g} of the largest output,"
            f" more than the tolerance of {tolerance:g}; another opset may do, or a larger tolerance."
        )
    write_atomically(file, data)
    return OnnxExport(len(data), opset, difference, images, zeros)


def _check(model: nn.Module, opset: int) -> None:
    check_whole(opset=opset)
    if is_detector(model):
        raise InputError(
            f"A {type(model).__name__} finds boxes, and ONNX is written for classifiers; write it dense or sparse."
        )
    state = list(model.state_dict().values())
    if any(tensor.device.type != "cpu" for tensor in state):
        raise InputError("The model is not on the CPU, where ONNX is written and checked; move it with model.cpu().")
    kinds = {tensor.dtype for tensor in state if tensor.is_floating_point()}
    if kinds - {torch.float32}:
        raise InputError(
            f"The model holds {kinds.pop()}; only float32 is written as ONNX: convert it with model.float()."
        )
    if sum(tensor.nbytes for tensor in state) > LIMIT:
        raise InputError("The weights take more than 2 GiB, the most that one ONNX file holds.")


def _trace(model: nn.Module, opset: int) -> Any:
    """The ModelProto."""
    from onnx import helper

    images = torch.zeros(2, *input_shape(model))
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # of torch's own insides
            program = torch.onnx.export(
                _Logits(model), (images,), dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"], output_names=["logits"], opset_version=opset, verbose=False,
            )  # fmt: skip
    except Exception as error:  # whatever a model's own code raises when it is traced
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{type(model).__name__} cannot be written as ONNX with a free batch size: {reason}"
        ) from error
    assert program is not None  # dynamo=True returns one
    traced = program.model_proto
    traced.ir_version = helper.find_min_ir_version_for(traced.opset_import)  # older runtimes refuse a newer one
    return traced


def _check_zeros(model: nn.Module, traced: Any) -> int:
    """How many zeros the weights have, once each weight's were found in the file, as it stands or transposed."""
    views = [view for array in arrays_of(traced) for view in (array, array.T)]
    patterns = {(view != 0).tobytes() for view in views}
    zeros = 0
    for name, weight in prunable_weights(model).items():
        kept = (weight.parameter.detach() != 0).numpy()
        lost = kept.size - int(kept.sum())
        exact = not lost or kept.tobytes() in patterns
        # a normalisation that was folded in may have taken whole channels along
        if not exact and not any(view.shape == kept.shape and not view[~kept].any() for view in views):
            raise InputError(
                f"The zeros of {name} are not in the ONNX graph as they are in the model; try another opset."
            )
        zeros += lost
    return zeros


def _largest_difference(model: nn.Module, data: bytes, batches: Iterable | None) -> tuple[float, int]:
    """(largest difference over largest output, images) on random images and those given."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    difference, images = 0.0, 0
    for number, batch in enumerate(_images(model, batches)):
        wanted = _Logits(model)(batch)
        given = torch.from_numpy(session.run(["logits"], {"images": batch.numpy()})[0])
        if not torch.isfinite(wanted).all():
            raise NumericsError(f"The model's outputs for batch {number} are NaN or infinite; look at its weights.")
        worst = ((given - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)).item()
        difference = max(difference, math.inf if math.isnan(worst) else worst)
        images += len(batch)
    return difference, images


def _images(model: nn.Module, batches: Iterable | None) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for size in (1, 3):  # neither is the size that was traced
        yield torch.randn(size, *input_shape(model), generator=generator)
    for batch in batches or ():
        arguments, keywords = batch_inputs(batch)
        yield next(iter((*arguments, *keywords.values())))
