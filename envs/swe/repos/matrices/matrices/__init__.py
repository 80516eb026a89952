"""Exact matrices."""

from matrices.matrix import Matrix, Singular

__all__ = ["Matrix", "Singular"]
