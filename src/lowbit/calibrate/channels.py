"""Sums of channels, for their means and variances: the same bits in whatever order samples come."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.exact_sums import ExactSums, as_floats, exact_sums
from lowbit.numerics.formats import DoubleArray, FloatArray

ChannelSums = tuple[NDArray[np.floating], NDArray[np.floating] | None, int]
"""The sum of each channel, that of its squares if asked for, and over how many positions."""


def channel_sums(x: FloatArray, axis: int, *, squares: bool = False) -> ChannelSums:
    """Return the sum of each channel along ``axis``, and of its squares if asked for."""
    axis %= x.ndim
    # einsum is several times faster at this than sum or mean.
    letters = "abcdefghij"[: x.ndim]
    both = np.einsum(f"{letters},{letters}->{letters[axis]}", x, x) if squares else None
    return np.einsum(f"{letters}->{letters[axis]}", x), both, x.size // max(x.shape[axis], 1)


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelTotals:
    """The sums of many samples: of each channel, of its squares if asked for, and how many positions."""

    sums: ExactSums
    squares: ExactSums | None
    positions: int

    @classmethod
    def of(cls, part: ChannelSums) -> ChannelTotals | None:
        """Return the totals of one sample, or nothing if a sum of it is not finite."""
        sums, squares, positions = part
        if positions == 0 or not np.isfinite(sums).all():
            return None
        if squares is not None and not np.isfinite(squares).all():
            return None
        return cls(exact_sums(sums), None if squares is None else exact_sums(squares), positions)

    def __or__(self, other: ChannelTotals) -> ChannelTotals:
        """Return the totals of the samples of both."""
        squares = None
        if self.squares is not None and other.squares is not None:
            squares = self.squares + other.squares
        return ChannelTotals(self.sums + other.sums, squares, self.positions + other.positions)

    @property
    def means(self) -> DoubleArray:
        """The mean of each channel."""
        return as_floats(self.sums) / self.positions

    @property
    def variances(self) -> DoubleArray | None:
        """The variance of each channel, if squares were asked for."""
        if self.squares is None:
            return None
        spread = as_floats(self.squares) / self.positions - np.square(self.means)
        return np.maximum(spread, 0.0)
