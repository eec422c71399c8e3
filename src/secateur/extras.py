"""Packages that only some commands need: imported on use, and asked for by name where they are missing."""

from importlib import import_module
from types import ModuleType

from .errors import InputError


def need(package: str, purpose: str, install: str) -> ModuleType:
    """The package; InputError that says what to install when it is not there.

    Args:
        purpose: what cannot be done without it, such as "writing ONNX".
        install: what pip is to install, such as "secateur[onnx]".
    """
    try:
        return import_module(package)
    except ImportError as error:
        found = f": {error}" if not isinstance(error, ModuleNotFoundError) else ""
        raise InputError(
            f"{purpose} needs {package}, which cannot be imported{found}; pip install '{install}'."
        ) from None
