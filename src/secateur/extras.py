"""Packages that only some commands need: imported on use, and asked for by name where they are missing."""

import importlib.util
from collections.abc import Mapping

from .errors import InputError


def require(packages: Mapping[str, str], extra: str, user: str) -> None:
    """Raise InputError unless all of these {module: package} are installed; `extra` of secateur brings them."""
    for module, package in packages.items():
        if importlib.util.find_spec(module) is None:
            raise InputError(f'{user} needs the package {package}; install it with pip install "secateur[{extra}]".')
