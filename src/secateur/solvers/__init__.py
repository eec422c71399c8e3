"""Pruning methods, one paper a file."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ..errors import InputError, nearest
from . import cap, magnitude, obs, woodfisher
from .base import Solver
from .cap import CAP
from .magnitude import Magnitude
from .obs import compensate, inverse_diagonal, loss_increase, solve_kept
from .woodfisher import WoodFisher

METHODS: Mapping[str, type[Solver]] = {solver.name: solver for solver in (Magnitude, WoodFisher, CAP)}


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
    known = [field.name for field in fields(METHODS[method]) if field.init]
    for option in options:
        if option not in known:
            raise InputError(
                f"{method} has no option {option!r}.{nearest(option, known)} It has {', '.join(known) or 'none'}."
            )
    return METHODS[method](**options)


__all__ = [
    "CAP",
    "METHODS",
    "Magnitude",
    "Solver",
    "WoodFisher",
    "cap",
    "compensate",
    "inverse_diagonal",
    "loss_increase",
    "magnitude",
    "obs",
    "solve_kept",
    "solver_named",
    "woodfisher",
]
