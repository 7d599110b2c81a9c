"""Subsample tensors: evenly spaced rows, or positions of a feature map, represent a whole tensor.

Histograms and means of some ten thousand values a sample serve as well as those of a million and
much faster. What is taken depends on the shape of a single sample only, so the result does not
depend on batching.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

from lowbit.numerics.formats import FloatArray

# Values of one sample that are enough, the fewest rows of it, and the fewest of a map whose columns are thinned too.
_ENOUGH, _LEAST_ROWS, _LEAST_EACH = 1 << 13, 4, 3
# Where the rows of feature maps and of sequences lie.
_ROW_AXES = MappingProxyType({4: 2, 3: 1})
_MAP = 4
"""The axes of a feature map."""


def row_step(shape: Sequence[int]) -> int:
    """Return how far apart the rows of a tensor are that are taken; 1 if all are."""
    axis = _ROW_AXES.get(len(shape))
    return 1 if axis is None else _step(shape, axis)


def _step(shape: Sequence[int], axis: int) -> int:
    return max(1, min(math.prod(shape[1:]) // _ENOUGH, shape[axis] // _LEAST_ROWS))


def map_steps(shape: Sequence[int]) -> tuple[int, int]:
    """Return how far apart the rows and the columns of a feature map are that are taken.

    Both are thinned out alike: a few whole rows would show many positions that look the same.
    """
    size = math.prod(shape[1:])
    height, width = (max(1, length // _LEAST_EACH) for length in shape[2:])
    spare = max(1, size // _ENOUGH)
    rows = min(math.isqrt(spare), height)
    return rows, min(spare // rows, width)


def thinned(x: FloatArray) -> FloatArray:
    """Return a feature map, or evenly spaced positions of one that has more values than needed."""
    if x.ndim != _MAP or not x.size:
        return x
    rows, columns = map_steps(x.shape)
    return x if rows * columns < 2 else x[:, :, rows // 2 :: rows, columns // 2 :: columns]


def subsampled(x: FloatArray, channel_axis: int | None = None) -> FloatArray:
    """Return ``x``, or evenly spaced rows of it when one sample has more values than needed.

    No channel is left out: where they lie as rows do elsewhere, as before a 1d convolution, positions are.
    """
    axis = _ROW_AXES.get(x.ndim)
    if axis is None or not x.size:
        return x
    if channel_axis is not None and channel_axis % x.ndim == axis:
        axis = x.ndim - 1
    step = _step(x.shape, axis)
    return x if step < 2 else x[(slice(None),) * axis + (slice(step // 2, None, step),)]
