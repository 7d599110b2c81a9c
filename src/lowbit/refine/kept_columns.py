"""Columns that decide between candidates: kept while they are few, summed as moments beyond that.

The squared error of weights takes less to compute from a few columns than from second moments, which
are as large as the layer is deep, squared.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.refine.column_sums import ColumnSums, ErrorSum, Totals

# Columns that are kept as far as there is room; of deeper layers as many as second moments would take.
_FEW, _ROOM = 512, 8 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Columns:
    """Inputs, outputs, and what the error of each column is multiplied by."""

    x: FloatArray
    y: FloatArray
    importance: FloatArray | None

    def squared(self, rows: slice, change: FloatArray, offset: DoubleArray) -> float:
        """Return the squared error of some outputs."""
        rest = self.y[:, rows] - np.matmul(change, self.x)
        rest -= offset[:, :, None]
        if self.importance is not None:
            rest *= self.importance
        return float(np.einsum("gon,gon->", rest, rest, dtype=np.float64))


class KeptColumns:
    """Columns of inputs x and outputs y, from which the error of any weights follows."""

    def __init__(self, groups: int, outputs: int, depth: int, *, relative: bool = False) -> None:
        """Begin with no columns; ``relative``: each will come with its importance."""
        self._shape, self._relative = (groups, outputs, depth), relative
        self._most = max(depth, min(_FEW, _ROOM // (4 * groups * (outputs + depth))))
        self._kept: list[_Columns] = []
        self._summed: ColumnSums | None = None
        self._totals = Totals(groups, outputs, depth)
        self.columns = 0
        self.is_finite = True

    def add(self, x: FloatArray, y: FloatArray, importance: FloatArray | None = None) -> None:
        """Add columns: groups x depth x n and groups x outputs x n."""
        self.columns += x.shape[2]
        self._totals.add(x, y)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = (np.vdot(x, x), np.vdot(y, y))
        self.is_finite &= bool(np.isfinite(squares).all())
        self._kept.append(_Columns(x, y, importance))
        if sum(columns.x.shape[2] for columns in self._kept) > self._most:
            self._sum_up()

    def _sum_up(self) -> None:
        """Add what is kept to second moments, and let go of it."""
        if self._summed is None:
            self._summed = ColumnSums(*self._shape, relative=self._relative)
        for columns in self._kept:
            self._summed.add(columns.x, columns.y, columns.importance)
        self._kept = []

    @property
    def totals(self) -> tuple[DoubleArray, DoubleArray]:
        """The sums of inputs and outputs, whatever the importance of their columns."""
        return self._totals.inputs, self._totals.outputs

    @property
    def squares(self) -> float:
        """The squares of those y whose change, not error, ``squared`` gives."""
        return 0.0 if self._summed is None else self._summed.squares

    def squared(self, rows: slice, change: FloatArray, offset: DoubleArray) -> tuple[float, ...]:
        """Return what some outputs add to the squared error of weights ``change`` and ``offset``."""
        kept = sum(columns.squared(rows, change, offset) for columns in self._kept)
        return kept, *(self._summed.squared(rows, change, offset) if self._summed else ())

    def error_sum(self) -> ErrorSum:
        """Return the sum of the error, to which some outputs are added at a time."""
        return ErrorSum(self)
