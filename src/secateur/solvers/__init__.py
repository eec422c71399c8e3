"""Pruning methods, one paper a file."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ..errors import InputError, nearest
from . import cap, fast_cap, magnitude, mfac, obs, woodfisher
from .base import Solver
from .cap import CAP
from .fast_cap import FastCAP, SharedFisher
from .grw import GradientSums, GrW
from .magnitude import Magnitude
from .mfac import MFAC, StoredGradients
from .obd import OBD
from .obs import compensate, inverse_diagonal, loss_increase, solve_kept
from .statistic import BlockFishers, Gathering, Statistic
from .woodfisher import WoodFisher

METHODS: Mapping[str, type[Solver]] = {
    solver.name: solver for solver in (Magnitude, GrW, OBD, WoodFisher, MFAC, FastCAP, CAP)
}


def solver_named(method: str | Solver, **options: Any) -> Solver:
    """The solver called `method` with `options` instead of its defaults; a solver is taken as it is.

    Raises:
        InputError: when there is no such method or option.
    """
    if isinstance(method, Solver):
        return replace(method, **options)
    if method not in METHODS:
        raise InputError(
            f"There is no method {method!r}.{nearest(str(method), METHODS)} The methods are {', '.join(METHODS)}."
        )
    known = options_of(method)
    for option in options:
        if option not in known:
            raise InputError(
                f"{method} has no option {option!r}.{nearest(option, known)} It has {', '.join(known) or 'none'}."
            )
    return METHODS[method](**options)


def options_of(method: str) -> list[str]:
    """The names of what can be chosen for a method of `METHODS`."""
    return [field.name for field in fields(METHODS[method]) if field.init]


__all__ = [
    "CAP",
    "METHODS",
    "MFAC",
    "OBD",
    "BlockFishers",
    "FastCAP",
    "Gathering",
    "GrW",
    "GradientSums",
    "Magnitude",
    "SharedFisher",
    "Solver",
    "Statistic",
    "StoredGradients",
    "WoodFisher",
    "cap",
    "compensate",
    "fast_cap",
    "inverse_diagonal",
    "loss_increase",
    "magnitude",
    "mfac",
    "obs",
    "options_of",
    "solve_kept",
    "solver_named",
    "woodfisher",
]
