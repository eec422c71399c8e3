"""Second-order pruning of vision models on ordinary machines.

import secateur
model = secateur.load_model("bundled")
batches = secateur.calibration_batches("bundled", model, samples=2048)
result = secateur.prune_(model, batches, "cap", sparsity=0.75)
secateur.save(model, result, "pruned")
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import detection, solvers
    from .certificate import inspect
    from .checkpoint import load, save
    from .comparison import compare, contender
    from .compiled import load_compiled, save_compiled
    from .data import DataSource, calibration_batches, evaluation_batches
    from .errors import InputError, NumericsError
    from .evaluation import evaluate
    from .export import export_dense, export_onnx, export_sparse, load_sparse
    from .families import family_of
    from .layers import select_layers
    from .models import load_model
    from .prune import PruneResult, prune_
    from .resources import Resources
    from .runtime import compile_sparse
    from .settings import solver_for
    from .solvers import CAP, MFAC, OBD, FastCAP, GrW, Magnitude, WoodFisher
    from .training import MaskKeeper

_PLACES = {
    # models and data
    "load_model": "models",
    "DataSource": "data",
    "calibration_batches": "data",
    "evaluation_batches": "data",
    "evaluate": "evaluation",
    # pruning
    "prune_": "prune",
    "PruneResult": "prune",
    "select_layers": "layers",
    "family_of": "families",
    "solver_for": "settings",
    "Resources": "resources",
    "compare": "comparison",
    "contender": "comparison",
    # methods
    "CAP": "solvers",
    "FastCAP": "solvers",
    "WoodFisher": "solvers",
    "MFAC": "solvers",
    "OBD": "solvers",
    "GrW": "solvers",
    "Magnitude": "solvers",
    # training
    "MaskKeeper": "training",
    # speed
    "compile_sparse": "runtime",
    "save_compiled": "compiled",
    "load_compiled": "compiled",
    # files
    "save": "checkpoint",
    "load": "checkpoint",
    "inspect": "certificate",
    "export_onnx": "export",
    "export_dense": "export",
    "export_sparse": "export",
    "load_sparse": "export",
    # failures
    "InputError": "errors",
    "NumericsError": "errors",
}
_MODULES = ("detection", "solvers")
__all__ = [*_PLACES, *_MODULES]


def __getattr__(name: str) -> object:
    """Public names load on first use, so that `import secateur` does not wait for torch."""
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
