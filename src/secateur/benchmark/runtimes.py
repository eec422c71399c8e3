"""The runtimes that can be compared: what each reads, whether zeros make it faster, and whether it is there."""

import importlib.util
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, nearest

COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Runtime:
    """One runtime, and the Python that it lives in."""

    name: str
    python: str = sys.executable
    reads: str = "onnx"  # or "older onnx", or "folder": one that timm opens
    sparse: bool = False  # gains from zeros, so every model is timed and not the dense one alone


def known(deepsparse: str | None = None) -> dict[str, Runtime]:
    """Every runtime by name; DeepSparse only with the Python of an environment that has it."""
    runtimes = [
        Runtime("secateur", reads="folder", sparse=True),
        Runtime("torch", reads="folder"),
        Runtime("torch.compile", reads="folder"),
        Runtime("onnxruntime"),
        Runtime("openvino"),
    ]
    if deepsparse is not None:
        runtimes.append(Runtime("deepsparse", _python(deepsparse), "older onnx", sparse=True))
    return {runtime.name: runtime for runtime in runtimes}


def choose(names: Sequence[str], deepsparse: str | None = None) -> tuple[list[Runtime], dict[str, str]]:
    """The runtimes to compare, and the reasons for which others are left out.

    Args:
        names: those wanted; none means all that are there.
    Raises:
        InputError: for a name that is none, or a runtime asked for by name that is not there.
    """
    runtimes = known(deepsparse)
    missing = {name: reason for name in runtimes if (reason := _missing(name))}
    for name in names:
        if name == "deepsparse" and deepsparse is None:
            raise InputError("deepsparse lives in an environment of its own; give its Python with --deepsparse.")
        if name not in runtimes:
            raise InputError(f"There is no runtime {name!r}; there are {', '.join(runtimes)}.{nearest(name, runtimes)}")
        if name in missing:
            raise InputError(f"The runtime {name} cannot be used: {missing[name]}.")
    wanted = dict.fromkeys(names) if names else dict.fromkeys(name for name in runtimes if name not in missing)
    left_out: Mapping[str, str] = {} if names else missing
    return [runtimes[name] for name in wanted], dict(left_out)


def _missing(name: str) -> str | None:
    """Why it is not there; None where it is."""
    if name in ("onnxruntime", "openvino") and importlib.util.find_spec(name) is None:
        return f"{name} is not installed: pip install {name}"
    if name == "torch.compile" and not any(shutil.which(compiler) for compiler in COMPILERS):
        return "torch.compile needs a C++ compiler, and none is on the path"
    return None


def _python(path: str) -> str:
    found = shutil.which(path)
    if found is None:
        raise InputError(f"--deepsparse is {path}, no Python that can be run; give such as ENVIRONMENT/bin/python.")
    return str(Path(found).absolute())  # not resolved: an environment's python is a link to the system's
