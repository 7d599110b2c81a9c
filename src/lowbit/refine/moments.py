"""Sums over all samples of a layer: those to solve it on, and those that decide whether the result is kept.

Samples come a few at a time and are let go of, so that memory does not grow with their number.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.refine.attenuation import Attenuation
from lowbit.refine.column_sums import ALL, ColumnSums, ErrorSum
from lowbit.refine.kept_columns import KeptColumns
from lowbit.refine.samples import Columns

# The share of a layer's error below which the rounding of its weights is left as it is.
_NEGLIGIBLE = 0.005
# A position with so many times the error of the median is left out where numbers are clipped.
_FAR = 16.0
# Columns that are summed up at once: to add products up takes as long, however few were multiplied. But
# those of a wide depthwise layer are a hundred kilobytes each, and wait twice where some are held out.
_MOST_COLUMNS, _FEWEST_COLUMNS = 512, 64
_ROOM_FOR_COLUMNS = 8 << 20


class LayerMoments:
    """The moments to solve a layer on, the sums that decide, and the means over all positions.

    What decides is summed up relative to the float layer, about which candidates differ little:
    their errors are then no differences of large numbers.
    """

    def __init__(
        self,
        weight: FloatArray,
        bias: FloatArray | None,
        *,
        fixed_bias: FloatArray | None = None,
        clipped: bool = False,
        relative: bool = False,
        held_out: Collection[int] = (),
        rounding: FloatArray | None = None,
        restored: bool = False,
    ) -> None:
        """Begin with no samples.

                ``weight`` (groups x outputs x depth) and ``bias`` are the float layer's; a ``fixed_bias`` is
        subtracted from the targets. ``clipped``: whether some positions were clipped before the layer or will be
                after it; those with errors far beyond all others' are then left out. ``held_out`` are the numbers of
                the samples that decide; if there are none, all do. ``relative``: each position counts relative to
                its own output.
                ``rounding`` is what rounding to the nearest changes of the weights: where that is next to
                negligible, no other rounding is looked for, and no second moments are taken.
                ``restored``: whether the outputs' attenuation is measured.
        """
        groups, outputs, depth = weight.shape
        self.weight, self.bias = weight, bias
        shape = (groups, outputs, 1)
        self._offset = np.zeros(shape, np.float32)
        if fixed_bias is not None:
            self._offset = np.asarray(fixed_bias, np.float32).reshape(shape)
        self._added = 0.0 if bias is None else bias.reshape(shape)
        self._clipped = clipped
        self._held_out, self._relative = frozenset(held_out), relative
        self._solved_on = ColumnSums(groups, outputs, depth, relative=relative)
        # What all samples decide needs the same second moments as what is solved.
        deciding = KeptColumns if self._held_out else ColumnSums
        self._decides = deciding(groups, outputs, depth, relative=relative)
        self._unit: float | None = None
        self._rounding = rounding
        self._share: float | None = None
        self._attenuation = Attenuation(groups, outputs)
        self._restored = restored and bias is not None and not relative
        self._at_once = columns_at_once(groups, outputs, depth)
        self._others: list[Columns] = []
        self._held: list[Columns] = []

    def add(self, samples: Sequence[tuple[int, Columns]]) -> None:
        """Add some samples, with their numbers."""
        for index, sample in samples:
            (self._held if index in self._held_out else self._others).append(sample)
        # Columns of a shallow layer are few, and what is summed up early is summed up while samples run.
        some = max(_FEWEST_COLUMNS, self.weight.shape[2] // 4)
        self._sum_up(min(some, self._at_once), self._at_once)

    def finish(self) -> None:
        """Sum up what is left; no sample comes after."""
        self._sum_up(1, 1)

    def _sum_up(self, fewest: int, fewest_held: int) -> None:
        """Sum up what has come, and what is held out, unless it is fewer columns than that."""
        if _columns(self._others) >= fewest:
            self._add(self._others, solve=True, decide=not self._held_out)
            self._others = []
        if _columns(self._held) >= fewest_held:
            self._add(self._held, solve=False, decide=True)
            self._held = []

    def _add(self, samples: Sequence[Columns], *, solve: bool, decide: bool) -> None:
        patches = np.concatenate([s.patches for s in samples], axis=2)
        targets = np.concatenate([s.targets for s in samples], axis=2)
        if self._clipped:
            usual = _usual(targets - self._offset - np.matmul(self.weight, patches) - self._added)
            patches, targets = patches[:, :, usual], targets[:, :, usual]
        importance = self._importance(targets) if self._relative else None
        targets = targets - self._offset
        rest = None
        if decide or self._restored or self._share is None:
            rest = targets - np.matmul(self.weight, patches) - self._added
            self._share = self._share_of(patches, rest) if self._share is None else self._share
            self._rounding = None
        if solve and self._restored and rest is not None:
            self._attenuation.add(targets, targets - rest)
        if solve and self.is_worth_solving:
            # What decides has the same columns, unless some are held out.
            self._solved_on.add(patches, targets, importance, inputs=not decide)
        elif solve:
            self._solved_on.add_totals(patches, targets)
        if decide and rest is not None:
            self._decides.add(patches, rest, importance)

    def _share_of(self, patches: FloatArray, rest: FloatArray) -> float:
        """Return what rounding to the nearest adds, as a share of the layer's error without it."""
        if self._rounding is None:
            return math.inf
        added = np.matmul(self._rounding, patches)
        error = _energy(rest)
        return _energy(added) / error if error > 0 else math.inf

    @property
    def is_worth_solving(self) -> bool:
        """Whether another rounding could gain anything, as far as the first samples show."""
        return self._share is None or self._share > _NEGLIGIBLE

    def _importance(self, targets: FloatArray) -> FloatArray:
        """Return one over the size of the output at each position; about one on average."""
        sizes = np.sqrt(np.square(targets, dtype=np.float64).mean(axis=(0, 1)))
        inverse = 1 / np.maximum(sizes, 1e-3 * sizes.mean() + 1e-30)
        if self._unit is None:
            self._unit = float(inverse.mean())
        return np.asarray(inverse / self._unit, np.float32)

    @property
    def output_gain(self) -> FloatArray:
        """The factors on outputs that undo the attenuation of what the layer reads."""
        return self._attenuation.output_gain()

    @property
    def is_empty(self) -> bool:
        """Whether no sample showed anything that can be computed with, or none of those that decide."""
        sums = (self._solved_on, self._decides)
        return not all(each.columns and each.is_finite for each in sums)

    @property
    def means(self) -> tuple[DoubleArray, DoubleArray]:
        """The means of patches and targets over all columns.

        At the same positions: their difference, which a bias removes, varies far less from one
        position to another than either does.
        """
        inputs, outputs = self._solved_on.totals
        count = self._solved_on.columns
        if self._held_out:
            more, rest = self._decides.totals
            count += self._decides.columns
            inputs = inputs + more
            # What decides is summed up relative to the float layer.
            outputs = outputs + rest + np.matmul(self.weight, more[:, :, None])[:, :, 0]
            outputs += (
                self._decides.columns * np.broadcast_to(self._added, (*outputs.shape, 1))[:, :, 0]
            )
        return inputs / max(count, 1), outputs / max(count, 1)

    def input_moments(self) -> FloatArray:
        """Return the second moments of inputs that all outputs are solved from, as an array of its own.

        About the means if the layer has a bias to remove any mean error.
        """
        other = self._decides if isinstance(self._decides, ColumnSums) else None
        return self._solved_on.input_moments(centred=self.bias is not None, inputs_of=other)

    def output_moments(self, rows: slice = ALL) -> FloatArray:
        """Return the second moments of some outputs with inputs, about the same."""
        return self._solved_on.output_moments(centred=self.bias is not None, rows=rows)

    def error(self, weight: FloatArray, bias: FloatArray | None) -> float:
        """Return the mean squared error of the layer's output before its activation."""
        found = self.error_sum()
        found.add(ALL, weight, bias)
        return found.mean

    def error_sum(self) -> LayerError:
        """Return the sum of the same error, to which some outputs are added at a time."""
        return LayerError(self.weight, self.bias, self._decides.error_sum())


def columns_at_once(groups: int, outputs: int, depth: int) -> int:
    """Return how many columns of a layer are waited for before they are summed up."""
    room = _ROOM_FOR_COLUMNS // (4 * groups * (outputs + depth))
    return min(max(room, _FEWEST_COLUMNS), _MOST_COLUMNS)


def _columns(samples: Sequence[Columns]) -> int:
    return sum(sample.patches.shape[2] for sample in samples)


def _usual(rest: FloatArray) -> NDArray[np.intp]:
    """Return the positions whose error is not far beyond that of most."""
    errors = np.einsum("gon,gon->n", rest, rest)
    return np.flatnonzero(errors <= _FAR * np.median(errors))


def _energy(array: FloatArray) -> float:
    return float(np.einsum("gon,gon->", array, array, dtype=np.float64))


class LayerError:
    """The error of weights and biases that are known for some outputs after others."""

    def __init__(self, weight: FloatArray, bias: FloatArray | None, error: ErrorSum) -> None:
        self._weight, self._error = weight, error
        self._bias = None if bias is None else bias.reshape(weight.shape[:2])

    def add(self, rows: slice, weight: FloatArray, bias: FloatArray | None) -> None:
        """Add some outputs of all groups."""
        shape = weight.shape[:2]
        offset: DoubleArray = np.zeros(shape)
        if bias is not None and self._bias is not None:
            offset = bias.reshape(shape).astype(np.float64) - self._bias[:, rows]
        self._error.add(rows, weight - self._weight[:, rows], offset)

    @property
    def mean(self) -> float:
        """The mean squared error."""
        return self._error.mean
