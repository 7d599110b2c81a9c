"""Orthogonal matrices that spread every channel over all."""

from __future__ import annotations

import numpy as np

from lowbit.transforms._cross_layer_math import DoubleArray


def spreading_basis(size: int) -> DoubleArray:
    """Return an orthogonal matrix of small entries, the first column all alike.

    A Hadamard matrix (Sylvester's) for a power of two; what is odd of the size is a cosine basis.
    """
    matrix = _cosines(size // (size & -size))
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]) / np.sqrt(2)
    return matrix


def rotation(size: int, *, keep_mean: bool, random: bool, seed: int) -> DoubleArray:
    """Return the matrix that a row of channels is multiplied by.

    ``keep_mean``: channels that are all alike stay so; then taking off their mean can be done
    before or after. ``random``: signs are drawn rather than taken as they come.
    """
    basis = spreading_basis(size)
    draw = np.random.default_rng(seed)
    if not keep_mean:
        return draw.choice([-1.0, 1.0], size)[:, None] * basis if random else basis
    # Signs in the basis, the first of which is the mean's.
    signs = draw.choice([-1.0, 1.0], size) if random else _uneven_signs(size)
    signs[0] = 1.0
    return (basis * signs) @ basis.T


def _uneven_signs(size: int) -> DoubleArray:
    """Return signs without a period: those of a quadratic chirp."""
    at = np.arange(size, dtype=np.float64)
    return np.where(np.sin(np.pi * at * at / max(size, 1) + 0.5) >= 0, 1.0, -1.0)


def _cosines(size: int) -> DoubleArray:
    """Return the orthonormal cosine basis, a basis vector a column."""
    places, waves = np.arange(size)[:, None] + 0.5, np.arange(size)[None, :]
    matrix: DoubleArray = np.cos(np.pi * places * waves / size) * np.sqrt(2 / size)
    matrix[:, 0] = 1 / np.sqrt(size)
    return matrix
