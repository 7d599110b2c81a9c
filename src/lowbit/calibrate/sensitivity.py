"""The sensitivity of the outputs to errors in a tensor, in bins of the tensor's values.

One backward pass measures it for all tensors: with random signs on the outputs, the squared gradient of their
sum times a squared error is on average the squared error of all outputs (Hutchinson's estimator). Rounding
errors of different values are independent, so their squares are summed. Clipping errors all have the same
sign, so they are summed first and then squared.

Large feature maps are sampled by rows. The sum over all rows is estimated from two halves of these rows.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import DoubleArray, FloatArray

_LOWEST, _HIGHEST = (127 - 32) << 3, (127 + 32) << 3
BINS = _HIGHEST - _LOWEST + 2
"""Bins for each sign, eight per power of two: the first holds zeros, the last everything beyond 2**32."""

SPATIAL, ROWS = 4, 2
"""The axes of feature maps, and the one of their rows."""


@functools.cache
def bin_edges() -> DoubleArray:
    """Return the ``BINS + 1`` edges of the positive bins, from zero outwards."""
    bits = np.arange(_LOWEST, _HIGHEST + 1, dtype=np.uint32) << 20
    inner = bits.view(np.float32).astype(np.float64)
    edges = np.concatenate(([0.0], inner, [float(np.finfo(np.float32).max)]))
    edges.setflags(write=False)
    return edges


@functools.cache
def _bin_of_leading_bits() -> NDArray[np.intp]:
    """Return the bin of each sign, exponent and three bits of mantissa, those of negative numbers last."""
    leading = np.arange(1 << 12, dtype=np.intp)
    bins = np.clip((leading & 0x7FF) - (_LOWEST - 1), 0, BINS - 1) + BINS * (leading >> 11)
    bins.setflags(write=False)
    return np.asarray(bins, np.intp)


@dataclasses.dataclass(frozen=True, slots=True)
class Sensitivity:
    """The squared error of the outputs that errors in a tensor cause, relative to the outputs' power.

    Summed over samples.

    Attributes:
        squares: For rounding: the squared gradients of the values of each bin, positive bins from zero
            outwards in the first row, negative bins in the second.
        clipped: For clipping at the inner edge of each bin: what is cut off times its gradient, summed
            and squared; at positive edges in the first row, at negative ones in the second. An unbiased
            estimate, which may be negative until enough samples are added.
        scattered: The part of the clipping error that is independent between rows, where only some rows
            were measured.
    """

    squares: DoubleArray
    clipped: DoubleArray
    scattered: DoubleArray

    @property
    def clipping(self) -> DoubleArray:
        """The error of clipping at the inner edge of each bin: positive edges, then negative ones."""
        return np.maximum(self.clipped, 0.0) + self.scattered

    def __or__(self, other: Sensitivity) -> Sensitivity:
        """Return the sums over the samples of both."""
        return Sensitivity(
            self.squares + other.squares,
            self.clipped + other.clipped,
            self.scattered + other.scattered,
        )

    @property
    def is_usable(self) -> bool:
        """Whether it is finite, and not zero everywhere."""
        return bool(np.isfinite(self.packed()).all() and self.squares.any())

    def packed(self) -> DoubleArray:
        """Return all numbers as one array."""
        return np.array([self.squares, self.clipped, self.scattered])

    @classmethod
    def unpacked(cls, array: NDArray[Any], name: str) -> Sensitivity:
        """Return the sensitivity that ``packed`` gave; raise ``ValueError`` for any other array."""
        if array.shape != (3, 2, BINS) or array.dtype != np.float64 or not (array[::2] >= 0).all():
            raise ValueError(f"the sensitivity of tensor {name!r} is none")
        return cls(*array)

    @classmethod
    def of(cls, values: FloatArray, gradients: FloatArray, rows: int) -> Sensitivity:
        """Return the sensitivity of one sample's tensor, of which some of its ``rows`` rows are given."""
        seen = values.shape[ROWS] if values.ndim == SPATIAL else 1
        if seen < 2 or seen == rows:
            counted = _Counted.of(values, gradients, halves=1)
            clipped = np.square(counted.beyond[0])
            return cls(counted.squares[0], clipped, np.zeros_like(clipped))
        counted = _Counted.of(values, gradients, halves=2)
        sizes = (seen + 1) // 2, seen // 2
        first, second = (each / size for each, size in zip(counted.beyond, sizes, strict=True))
        # The mean of the rows is summed, then squared; the squares of what varies between rows are summed.
        scatter = np.square(first - second) / (1 / sizes[0] + 1 / sizes[1])
        squares = counted.squares.sum(axis=0) * (rows / seen)
        return cls(squares, rows * rows * first * second, rows * scatter)


@dataclasses.dataclass(frozen=True, slots=True)
class _Counted:
    """Sums for each half of the rows (even, odd), each sign and each bin.

    ``squares`` sums squared gradients, ``beyond`` gradients times how far values are beyond the bin's inner edge.
    """

    squares: DoubleArray
    beyond: DoubleArray

    @classmethod
    def of(cls, values: FloatArray, gradients: FloatArray, *, halves: int) -> _Counted:
        """Return the sums over a tensor; with two ``halves`` even and odd rows apart."""
        x = np.ascontiguousarray(values, np.float32)
        leading = x.view(np.uint16)[..., 1::2] >> 4  # the high half on little-endian machines
        bins = _bin_of_leading_bits().take(leading)
        if halves == 2:
            bins[:, :, 1::2] += 2 * BINS
        flat, g = bins.reshape(-1), gradients.reshape(-1).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # a mask of -inf, as ``is_usable`` tells
            g_sums, products, squares = (
                np.asarray(np.bincount(flat, w, halves * 2 * BINS), np.float64).reshape(
                    halves, 2, BINS
                )
                for w in (g, g * x.reshape(-1), g * g)
            )
            after, products = (
                np.cumsum(a[..., ::-1], axis=-1)[..., ::-1] for a in (g_sums, products)
            )
            signs = np.array([[1.0], [-1.0]])
            return cls(squares, products - signs * bin_edges()[:-1] * after)
