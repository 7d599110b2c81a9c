"""What the outputs feel of errors in a tensor, by the values that the errors are at.

The gradients of random sums of the outputs tell it of every tensor at once: with signs drawn at random, the
square of a gradient times an error is on average what that error adds to the squares of all outputs
(Hutchinson's estimator). Rounding errors of different values have nothing to do with each other, so their
squares add up. What clipping cuts off has one sign: it adds up first and is squared then.

Only some rows of large maps are looked at. The sum over all rows is reckoned from two halves of them.
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
"""Bins for each sign, eight to a power of two: the first is of what counts as zero, the last of all beyond 2**32."""

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
    """Sums over samples of what the outputs feel, relative to their own squares.

    Attributes:
        squares: Of rounding errors: the squared gradients of the values of each bin, of the positive bins from
            zero outwards in the first row, of the negative ones in the second.
        clipped: Of clipping at the inner edge of each bin: what is beyond it times its gradient, added up
            and squared; above it in the first row, below its negative in the second. An estimate, which
            may be negative for a while.
        scattered: What of the same does not add up over rows, where only some rows were seen.
    """

    squares: DoubleArray
    clipped: DoubleArray
    scattered: DoubleArray

    @property
    def clipping(self) -> DoubleArray:
        """What outputs feel of clipping at the inner edge of each bin, above it and below its negative."""
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
        """Whether anything was felt, and all of it is finite."""
        return bool(np.isfinite(self.packed()).all() and self.squares.any())

    def packed(self) -> DoubleArray:
        """Return it as one array."""
        return np.array([self.squares, self.clipped, self.scattered])

    @classmethod
    def unpacked(cls, array: NDArray[Any], name: str) -> Sensitivity:
        """Return what ``packed`` was called of; what it cannot have given is refused."""
        if array.shape != (3, 2, BINS) or array.dtype != np.float64 or not (array[::2] >= 0).all():
            raise ValueError(f"the sensitivity of tensor {name!r} is none")
        return cls(*array)

    @classmethod
    def of(cls, values: FloatArray, gradients: FloatArray, rows: int) -> Sensitivity:
        """Measure the rows of one sample's tensor that are given of ``rows``."""
        seen = values.shape[ROWS] if values.ndim == SPATIAL else 1
        if seen < 2 or seen == rows:
            counted = _Counted.of(values, gradients, halves=1)
            clipped = np.square(counted.beyond[0])
            return cls(counted.squares[0], clipped, np.zeros_like(clipped))
        counted = _Counted.of(values, gradients, halves=2)
        sizes = (seen + 1) // 2, seen // 2
        first, second = (each / size for each, size in zip(counted.beyond, sizes, strict=True))
        # Rows have a mean, which adds up, and scatter about it, whose squares do.
        scatter = np.square(first - second) / (1 / sizes[0] + 1 / sizes[1])
        squares = counted.squares.sum(axis=0) * (rows / seen)
        return cls(squares, rows * rows * first * second, rows * scatter)


@dataclasses.dataclass(frozen=True, slots=True)
class _Counted:
    """Sums for every other row, each sign and each bin.

    ``squares`` are those of squared gradients, ``beyond`` of gradients times what is beyond the inner edge of
    the bin.
    """

    squares: DoubleArray
    beyond: DoubleArray

    @classmethod
    def of(cls, values: FloatArray, gradients: FloatArray, *, halves: int) -> _Counted:
        """Sum up the values of a tensor, of every other row by itself if in halves."""
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
