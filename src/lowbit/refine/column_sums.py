"""Sums over columns of a layer's inputs and outputs, in a size that does not depend on their number.

Second moments and squared errors of any weights follow from them, so no column need be kept.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.refine.descent import Moments

# Moments that are computed with in double precision at a time.
_AT_ONCE = 1 << 20
# Products that are added at a time: smaller layers have them all at once.
_PRODUCTS_AT_ONCE = 1 << 22

ALL = slice(None)
"""All outputs."""


class ColumnSums:
    """Sums of inputs x, outputs y and their products, each column as far as it counts."""

    def __init__(self, groups: int, outputs: int, depth: int, *, relative: bool = False) -> None:
        """Begin with no columns; ``relative``: each will come with its importance."""
        self.columns = 0
        self._weight = 0.0
        self._squares = 0.0
        self._plain = Totals(groups, outputs, depth)
        self._weighted = Totals(groups, outputs, depth) if relative else self._plain
        self.inputs = np.zeros((groups, depth, depth), np.float32)
        self._products = np.zeros((groups, outputs, depth), np.float32)

    def add(
        self,
        x: FloatArray,
        y: FloatArray,
        importance: FloatArray | None = None,
        *,
        inputs: bool = True,
    ) -> None:
        """Add columns: groups x depth x n and groups x outputs x n.

        ``importance`` is what the error of each column is multiplied by. Without ``inputs`` their own
        products are left out: other sums have them.
        """
        self.columns += x.shape[2]
        self._plain.add(x, y)
        if importance is None:
            self._weight += x.shape[2]
        else:
            x, y = x * importance, y * importance
            self._weight += float(np.square(importance, dtype=np.float64).sum())
            self._weighted.add(x * importance, y * importance)
        with np.errstate(over="ignore", invalid="ignore"):  # as ``is_finite`` tells
            if inputs:
                _add_products(self.inputs, x, x)
            _add_products(self._products, y, x)
        self._squares += float(np.einsum("gon,gon->", y, y, dtype=np.float64))

    def add_totals(self, x: FloatArray, y: FloatArray) -> None:
        """Add columns to the totals alone: second moments then do not hold."""
        self.columns += x.shape[2]
        self._plain.add(x, y)

    @property
    def is_finite(self) -> bool:
        """Whether all products are numbers: those of very large ones are none."""
        return bool(np.isfinite(self.inputs).all() and np.isfinite(self._products).all())

    @property
    def totals(self) -> tuple[DoubleArray, DoubleArray]:
        """The sums of inputs and outputs, whatever the importance of their columns."""
        return self._plain.inputs, self._plain.outputs

    def moments(
        self, *, centred: bool, rows: slice = ALL, inputs_of: ColumnSums | None = None
    ) -> Moments:
        """Return second moments of some outputs, about the means of all columns if asked for.

        ``inputs_of`` are sums of the same columns that have the products of inputs.
        """
        return Moments(
            self.input_moments(centred=centred, inputs_of=inputs_of),
            self.output_moments(centred=centred, rows=rows),
        )

    def input_moments(self, *, centred: bool, inputs_of: ColumnSums | None = None) -> FloatArray:
        """Return the second moments of inputs, as an array of their own."""
        found = (inputs_of or self).inputs.copy()
        if centred:
            x, sum_x = self._plain.inputs / self.columns, self._weighted.inputs
            rest = sum_x - self._weight * x
            step = max(1, _AT_ONCE // max(1, found.shape[2]))
            for first in range(0, found.shape[1], step):
                rows = slice(first, first + step)
                # The sum of (a - mean a)(b - mean b), multiplied out.
                found[:, rows] -= _outer(x[:, rows], sum_x)
                found[:, rows] -= _outer(rest[:, rows], x)
        found /= np.float32(self.columns)
        return found

    def output_moments(self, *, centred: bool, rows: slice = ALL) -> FloatArray:
        """Return the second moments of some outputs with inputs."""
        products, count = self._products[:, rows], np.float32(self.columns)
        if not centred:
            return np.asarray(products / count)
        x, y = self._plain.inputs / self.columns, self._plain.outputs[:, rows] / self.columns
        sum_x, sum_y = self._weighted.inputs, self._weighted.outputs[:, rows]
        products = products - _outer(y, sum_x) - _outer(sum_y - self._weight * y, x)
        return np.asarray(products / count)

    def error(self, change: FloatArray, offset: DoubleArray) -> float:
        """Return the mean squared error where weights ``change`` and ``offset`` are to give y.

        ``change`` is groups x outputs x depth, ``offset`` groups x outputs.
        """
        found = self.error_sum()
        found.add(ALL, change, offset)
        return found.mean

    def error_sum(self) -> ErrorSum:
        """Return the sum of the same error, to which some outputs are added at a time."""
        return ErrorSum(self)

    def squared(self, rows: slice, change: FloatArray, offset: DoubleArray) -> tuple[float, float]:
        """Return what weights and what offsets of some outputs add to the squares of all y."""
        seen = np.matmul(change, self.inputs)
        seen -= 2 * self._products[:, rows]
        means = np.matmul(change, self._weighted.inputs[:, :, None])[:, :, 0]
        means -= self._weighted.outputs[:, rows]
        return (
            float(np.einsum("god,god->", seen, change, dtype=np.float64)),
            float((offset * (2 * means + self._weight * offset)).sum()),
        )

    @property
    def squares(self) -> float:
        """The squares of all y."""
        return self._squares


class Columns(Protocol):
    """The interface of columns that give the squared error of weights."""

    columns: int

    @property
    def squares(self) -> float:
        """The part of the error that does not depend on the weights."""

    def squared(self, rows: slice, change: FloatArray, offset: DoubleArray) -> tuple[float, ...]:
        """Return what some outputs add to it."""


class ErrorSum:
    """The squared error of weights that are known for some outputs after others."""

    def __init__(self, sums: Columns) -> None:
        self._sums, self._total, self._channels = sums, sums.squares, 0

    def add(self, rows: slice, change: FloatArray, offset: DoubleArray) -> None:
        """Add some outputs of all groups; each has to come once."""
        for part in self._sums.squared(rows, change, offset):
            self._total += part
        self._channels += math.prod(change.shape[:2])

    @property
    def mean(self) -> float:
        """The mean over columns and outputs."""
        return float(max(self._total, 0.0)) / (self._sums.columns * self._channels)


class Totals:
    """Sums of columns, in double precision."""

    def __init__(self, groups: int, outputs: int, depth: int) -> None:
        self.inputs, self.outputs = np.zeros((groups, depth)), np.zeros((groups, outputs))

    def add(self, x: FloatArray, y: FloatArray) -> None:
        """Add columns."""
        # Few columns at a time: their sums are as exact as they are themselves.
        self.inputs += x.sum(axis=2)
        self.outputs += y.sum(axis=2)


def _add_products(sums: FloatArray, a: FloatArray, b: FloatArray) -> None:
    """Add the products of all columns to ``sums``, with few of them in memory at a time."""
    across = b.swapaxes(1, 2)
    step = max(1, _PRODUCTS_AT_ONCE // max(1, b.shape[1]))
    for first in range(0, a.shape[1], step):
        rows = slice(first, first + step)
        sums[:, rows] += a[:, rows] @ across


def _outer(a: DoubleArray, b: DoubleArray) -> FloatArray:
    found = np.empty((*a.shape, b.shape[1]), np.float32)
    # Multiplied in double precision, of which little is in memory at a time.
    return np.multiply(a[:, :, None], b[:, None, :], out=found, casting="same_kind")
