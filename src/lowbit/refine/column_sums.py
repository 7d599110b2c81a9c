"""Sums over columns of a layer's inputs and outputs, in a size that does not depend on their number.

Second moments and squared errors of any weights follow from them, so no column need be kept.
"""

from __future__ import annotations

import math

import numpy as np

from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.refine.descent import Moments


class ColumnSums:
    """Sums of inputs x, outputs y and their products, each column as far as it counts."""

    def __init__(self, groups: int, outputs: int, depth: int, *, relative: bool = False) -> None:
        """Begin with no columns; ``relative``: each will come with its importance."""
        self.columns = 0
        self._weight = 0.0
        self._squares = 0.0
        self._plain = _Totals(groups, outputs, depth)
        self._weighted = _Totals(groups, outputs, depth) if relative else self._plain
        self._inputs = np.zeros((groups, depth, depth), np.float32)
        self._products = np.zeros((groups, outputs, depth), np.float32)

    def add(self, x: FloatArray, y: FloatArray, importance: FloatArray | None = None) -> None:
        """Add columns: groups x depth x n and groups x outputs x n.

        ``importance`` is what the error of each column is multiplied by.
        """
        self.columns += x.shape[2]
        self._plain.add(x, y)
        if importance is None:
            self._weight += x.shape[2]
        else:
            x, y = x * importance, y * importance
            self._weight += float(np.square(importance, dtype=np.float64).sum())
            self._weighted.add(x * importance, y * importance)
        across = x.swapaxes(1, 2)
        self._inputs += x @ across
        self._products += y @ across
        self._squares += float(np.einsum("gon,gon->", y, y, dtype=np.float64))

    def add_totals(self, x: FloatArray, y: FloatArray) -> None:
        """Add columns to the totals alone: second moments then do not hold."""
        self.columns += x.shape[2]
        self._plain.add(x, y)

    @property
    def totals(self) -> tuple[DoubleArray, DoubleArray]:
        """The sums of inputs and outputs, whatever the importance of their columns."""
        return self._plain.inputs, self._plain.outputs

    def moments(self, *, centred: bool) -> Moments:
        """Return second moments, about the means of all columns if asked for."""
        inputs, products = self._inputs, self._products
        if centred:
            x, y = self._plain.inputs / self.columns, self._plain.outputs / self.columns
            sum_x, sum_y = self._weighted.inputs, self._weighted.outputs
            # The sum of (a - mean a)(b - mean b), multiplied out.
            inputs = inputs - _outer(x, sum_x) - _outer(sum_x - self._weight * x, x)
            products = products - _outer(y, sum_x) - _outer(sum_y - self._weight * y, x)
        count = np.float32(self.columns)
        return Moments(inputs / count, products / count)

    def error(self, change: FloatArray, offset: DoubleArray) -> float:
        """Return the mean squared error where weights ``change`` and ``offset`` are to give y.

        ``change`` is groups x outputs x depth, ``offset`` groups x outputs.
        """
        seen = np.matmul(change, self._inputs)
        seen -= 2 * self._products
        total = self._squares + float(np.einsum("god,god->", seen, change, dtype=np.float64))
        means = np.matmul(change, self._weighted.inputs[:, :, None])[:, :, 0]
        means -= self._weighted.outputs
        total += float((offset * (2 * means + self._weight * offset)).sum())
        return float(max(total, 0.0)) / (self.columns * math.prod(change.shape[:2]))


class _Totals:
    """Sums of columns, in double precision."""

    def __init__(self, groups: int, outputs: int, depth: int) -> None:
        self.inputs, self.outputs = np.zeros((groups, depth)), np.zeros((groups, outputs))

    def add(self, x: FloatArray, y: FloatArray) -> None:
        # Few columns at a time: their sums are as exact as they are themselves.
        self.inputs += x.sum(axis=2)
        self.outputs += y.sum(axis=2)


def _outer(a: DoubleArray, b: DoubleArray) -> FloatArray:
    return np.asarray(a[:, :, None] * b[:, None, :], np.float32)
