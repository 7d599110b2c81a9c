"""What the outputs feel of errors in a tensor, by the values that the errors are at.

The gradients of random sums of the outputs tell it of every tensor at once: with signs drawn at random, the
square of a gradient times an error is on average what that error adds to the squares of all outputs
(Hutchinson's estimator). Rounding errors of different values have nothing to do with each other, so their
squares add up. What clipping cuts off has one sign: it adds up first and is squared then.

Only some rows of large maps are looked at. The sum over all rows is reckoned from two halves of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import DoubleArray, FloatArray

BINS = 1 << 11
"""Bins for each sign: by exponent and the three leading bits of the mantissa."""

ZERO = (127 - 32) << 3
"""The first bin of numbers that do not count as zero."""

_FINITE = 0xFF << 3
SPATIAL, ROWS = 4, 2
"""The axes of feature maps, and the one of their rows."""


def bin_edges() -> DoubleArray:
    """Return the ``BINS + 1`` edges of the positive bins; those of numbers that are not finite are far away."""
    bits = np.arange(_FINITE, dtype=np.uint32) << 20
    far = np.finfo(np.float32).max * np.linspace(1, 2, BINS + 1 - _FINITE)
    return np.concatenate((bits.view(np.float32).astype(np.float64), far))


@dataclasses.dataclass(frozen=True, slots=True)
class Sensitivity:
    """Sums over samples of what the outputs feel, relative to their own squares.

    Attributes:
        squares: Of rounding errors: the squared gradients of the values of each bin, first the positive
            bins from zero outwards, then the negative ones.
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
        return np.array([self.squares, self.clipped.reshape(-1), self.scattered.reshape(-1)])

    @classmethod
    def unpacked(cls, array: NDArray[Any], name: str) -> Sensitivity:
        """Return what ``packed`` was called of; what it cannot have given is refused."""
        if array.shape != (3, 2 * BINS) or array.dtype != np.float64 or not (array[::2] >= 0).all():
            raise ValueError(f"the sensitivity of tensor {name!r} is none")
        return cls(array[0], array[1].reshape(2, BINS), array[2].reshape(2, BINS))

    @classmethod
    def of(cls, values: FloatArray, gradients: FloatArray, rows: int) -> Sensitivity:
        """Measure the rows of one sample's tensor that are given of ``rows``."""
        if values.ndim != SPATIAL or values.shape[ROWS] < 2 or values.shape[ROWS] == rows:
            counted = _Counted.of(values, gradients)
            clipped = np.square(counted.beyond())
            return cls(counted.squares, clipped, np.zeros_like(clipped))
        halves = [
            _Counted.of(values[:, :, first::2], gradients[:, :, first::2]) for first in (0, 1)
        ]
        seen = values.shape[ROWS]
        counts = [len(range(first, seen, 2)) for first in (0, 1)]
        squares = (halves[0].squares + halves[1].squares) * (rows / seen)
        means = [half.beyond() / count for half, count in zip(halves, counts, strict=True)]
        # Rows have a mean, which adds up, and scatter about it, whose squares do.
        scatter = np.square(means[0] - means[1]) / (1 / counts[0] + 1 / counts[1])
        return cls(squares, rows * rows * means[0] * means[1], rows * scatter)


@dataclasses.dataclass(frozen=True, slots=True)
class _Counted:
    """Sums by bin of gradients, of gradients times values, and of squared gradients."""

    gradients: DoubleArray
    products: DoubleArray
    squares: DoubleArray

    @classmethod
    def of(cls, values: FloatArray, gradients: FloatArray) -> _Counted:
        x = np.ascontiguousarray(values, np.float32).reshape(-1)
        bins = x.view(np.uint16)[1::2] >> 4  # the high half on little-endian machines
        g = gradients.reshape(-1).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # a mask of -inf, as ``is_usable`` tells
            sums = [np.bincount(bins, w, 2 * BINS) for w in (g, g * x, g * g)]
        return cls(*(np.asarray(each, np.float64) for each in sums))

    def beyond(self) -> DoubleArray:
        """Return the sum of gradients times what is beyond the inner edge of each bin."""
        edges = bin_edges()[:-1]
        rows = []
        for half, sign in ((slice(BINS), 1), (slice(BINS, None), -1)):
            g, products = (np.cumsum(a[half][::-1])[::-1] for a in (self.gradients, self.products))
            with np.errstate(invalid="ignore"):
                rows.append(products - sign * edges * g)
        return np.array(rows)
