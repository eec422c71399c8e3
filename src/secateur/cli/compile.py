"""Write a saved model as one file that the sparse runtime reads at once.

  secateur compile pruned/0.9 --out model.sct

secateur.load_compiled opens it. Vision transformers are stored packed and need no timm to run; other models of timm are
stored without their zeros and compiled when they are loaded. The outputs of the file are compared with the model's.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from .console import Console
from .options import option
from .shared import ModelOptions

HELP = "write a saved model for the sparse runtime"
TOLERANCE = 1e-4  # of the largest output


@dataclass
class Options(ModelOptions):
    model: str = option(..., "folder that secateur wrote, timm name, hf-hub:…, local-dir:… or bundled", positional=True)
    out: str = option(..., "file to write", metavar="FILE.sct")
    measure: bool = option(True, "keep dense what is faster dense on this machine")
    overwrite: bool = option(False, "replace a file that is there already")
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..checkpoint import state_of
    from ..compiled import load_compiled, save_compiled
    from ..files import check_file
    from ..runtime.modules import SparseTransformer
    from ..units import readable
    from .sources import saved_model

    check_file(options.out, options.overwrite)
    if Path(options.out).suffix != ".sct":
        raise InputError(f"--out is {options.out}; give a name that ends in .sct.")
    console = Console(options.json)
    model = saved_model(options)
    dense = sum(tensor.nbytes for tensor in state_of(model).values())
    tried = Path(options.out).with_name(f".{Path(options.out).name}.tried")
    try:
        size = save_compiled(model, tried, options.measure)
        loaded = load_compiled(tried)
        difference = _difference(model, loaded)
        if not difference <= TOLERANCE:
            raise InputError(
                f"{options.out} was not written: its outputs would differ from the model's by {difference:.2g} of the"
                " largest output."
            )
        os.replace(tried, options.out)
    finally:
        tried.unlink(missing_ok=True)
    packed = isinstance(loaded, SparseTransformer)
    console.document(
        {"model": options.model, "path": options.out, "bytes": size, "dense_bytes": dense, "ratio": size / dense,
         "packed": packed, "difference": difference}
    )  # fmt: skip
    console.line(
        f"{options.out}: {readable(size)}, {100 * size / dense:.1f} % of the dense weights;"
        f" {'packed for the encoder' if packed else 'compiled when it is loaded'};"
        f" outputs differ by at most {difference:.1e} of the largest."
    )
    return 0


def _difference(model, loaded) -> float:
    """The largest between their outputs for two random images, in units of the largest output."""
    import torch

    from ..models import input_shape

    images = torch.randn(2, *input_shape(model), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted, found = model(images), loaded(images)
    return ((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)).item()
