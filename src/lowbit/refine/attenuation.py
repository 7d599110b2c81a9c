"""Measure and undo attenuation: how much of the float outputs' variation a layer still has.

What errs on its own, without regard to the signal, attenuates: a layer that is fitted to noisy inputs answers
with less than the float layer does (regression dilution), and so does one that reads a hard swish for a
swish. A few percent a layer add up, and most where an output is far from its mean: at the objects of a
detector. So the slope of each output on the float one is measured, and undone.
"""

from __future__ import annotations

import numpy as np

from lowbit.numerics.formats import DoubleArray, FloatArray

# More than this is no attenuation, but an output that has next to nothing to do with the float one.
_MOST = 1.3


class Attenuation:
    """Sums over columns of float outputs y and of those that the layer computes."""

    def __init__(self, groups: int, outputs: int) -> None:
        """Begin with no columns."""
        self._count = 0
        self._y, self._computed, self._squares, self._products = (
            np.zeros((groups, outputs)) for _ in range(4)
        )

    def add(self, y: FloatArray, computed: FloatArray) -> None:
        """Add columns, groups x outputs x n each."""
        self._count += y.shape[2]
        self._y += y.sum(axis=2)
        self._computed += computed.sum(axis=2)
        self._squares += np.einsum("gon,gon->go", y, y)
        self._products += np.einsum("gon,gon->go", y, computed)

    def output_gain(self) -> FloatArray:
        """Return the factor of each output, groups x outputs x 1, under which its slope is one."""
        count = max(self._count, 1)
        variance = self._squares / count - np.square(self._y / count)
        covariance = self._products / count - self._y * self._computed / count**2
        known = (covariance > 0) & (variance > 0)
        factor: DoubleArray = np.ones_like(variance)
        np.divide(variance, covariance, out=factor, where=known)
        return np.asarray(np.clip(factor, 1.0, _MOST)[:, :, None], np.float32)
