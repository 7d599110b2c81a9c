"""What all samples show of a layer, as sums: what it is solved from, and what decides whether it is kept.

Samples come a few at a time and are let go of, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.ops.geometry import LinearLayer
from lowbit.refine.column_sums import ColumnSums
from lowbit.refine.descent import Moments
from lowbit.refine.samples import LayerSample


class LayerMoments:
    """The moments to solve a layer on, the sums that decide, and the means over all positions.

    What decides is summed up relative to the float layer, about which candidates differ little:
    their errors are then no differences of large numbers.
    """

    def __init__(
        self,
        geometry: LinearLayer,
        weight: FloatArray,
        bias: FloatArray | None,
        *,
        fixed_bias: FloatArray | None = None,
        relative: bool = False,
        held_out: Collection[int] = (),
    ) -> None:
        """Begin with no samples.

        ``weight`` (groups x outputs x depth) and ``bias`` are the float layer's; a ``fixed_bias`` is
        taken off the targets. ``held_out`` are the numbers of the samples that decide; if there
        are none, all do. ``relative``: each position counts relative to its own output.
        """
        groups, outputs, depth = weight.shape
        self.weight, self.bias = weight, bias
        shape = (groups, outputs, 1)
        self._offset = np.zeros(shape, np.float32)
        if fixed_bias is not None:
            self._offset = np.asarray(fixed_bias, np.float32).reshape(shape)
        self._added = 0.0 if bias is None else bias.reshape(shape)
        self._held_out, self._relative = frozenset(held_out), relative
        self._solved_on = ColumnSums(groups, outputs, depth, relative=relative)
        self._decides = ColumnSums(groups, outputs, depth, relative=relative)
        self._patch_sum = np.zeros((groups, geometry.depth))
        self._target_sum = np.zeros((groups, outputs))
        self._positions = 0
        self._unit: float | None = None

    def add(self, samples: Sequence[tuple[int, LayerSample]]) -> None:
        """Add some samples, with their numbers."""
        for _, sample in samples:
            self._patch_sum += sample.patch_sum
            self._target_sum += sample.target_sum
            self._positions += sample.count
        held = [sample for index, sample in samples if index in self._held_out]
        others = [sample for index, sample in samples if index not in self._held_out]
        self._add(others, solve=True, decide=not self._held_out)
        self._add(held, solve=False, decide=True)

    def _add(self, samples: Sequence[LayerSample], *, solve: bool, decide: bool) -> None:
        if not samples:
            return
        patches = np.concatenate([s.patches for s in samples], axis=2)
        targets = np.concatenate([s.targets for s in samples], axis=2)
        importance = self._importance(targets) if self._relative else None
        targets = targets - self._offset
        if solve:
            self._solved_on.add(patches, targets, importance)
        if decide:
            rest = targets - np.matmul(self.weight, patches) - self._added
            self._decides.add(patches, rest, importance)

    def _importance(self, targets: FloatArray) -> FloatArray:
        """Return one over the size of the output at each position; about one on average."""
        sizes = np.sqrt(np.square(targets, dtype=np.float64).mean(axis=(0, 1)))
        inverse = 1 / np.maximum(sizes, 1e-3 * sizes.mean() + 1e-30)
        if self._unit is None:
            self._unit = float(inverse.mean())
        return np.asarray(inverse / self._unit, np.float32)

    @property
    def is_empty(self) -> bool:
        """Whether no sample showed anything, or none of those that decide."""
        return not (self._solved_on.columns and self._decides.columns)

    @property
    def means(self) -> tuple[DoubleArray, DoubleArray]:
        """The means of patches and targets over all positions of all samples."""
        count = max(self._positions, 1)
        return self._patch_sum / count, self._target_sum / count - self._offset[:, :, 0]

    @property
    def moments(self) -> Moments:
        """What the layer is solved from: about the means if it has a bias to take off any mean error."""
        return self._solved_on.moments(centred=self.bias is not None)

    def error(self, weight: FloatArray, bias: FloatArray | None) -> float:
        """Return the mean squared error of the layer's output before its activation."""
        shape = weight.shape[:2]
        offset: DoubleArray = np.zeros(shape)
        if bias is not None and self.bias is not None:
            offset = bias.reshape(shape).astype(np.float64) - self.bias.reshape(shape)
        return self._decides.error(weight - self.weight, offset)
