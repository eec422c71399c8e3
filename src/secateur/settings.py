"""Which options a method has on a model: those that are given, then the family's or the paper's, then its own."""

from typing import Any

from torch import nn

from .families import family_of
from .solvers import Solver, solver_named


def solver_for(model: nn.Module, method: str | Solver = "cap", paper: bool = False, **options: Any) -> Solver:
    """The method as `prune_` and `compare` apply it to this model; a solver is taken as it is.

    Args:
        method: one of `secateur.solvers.METHODS`.
        paper: the block and the damping of the CAP paper for the model's family, in place of the defaults. Its λ is
            absolute and belongs to `samples_per_gradient=128`; it took 4,096 such gradients, of 524,288 images.
        options: what is to be different.
    Raises:
        InputError: when there is no such method or option.

    >>> import timm
    >>> model = timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(4, 8, 12, 16))
    >>> solver_for(model, "cap")
    CAP(block=128, damping=0.01, relative=True)
    >>> solver_for(model, "cap", paper=True)
    CAP(block=128, damping=1e-07, relative=False)
    """
    if isinstance(method, Solver):
        return solver_named(method, **options)
    return solver_named(method, **{**family_of(model).options_of(method, paper), **options})
