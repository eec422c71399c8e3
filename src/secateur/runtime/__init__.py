"""The sparse runtime: models whose zeros save time."""

from .compile import compile_sparse

__all__ = ["compile_sparse"]
