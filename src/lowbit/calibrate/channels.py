"""Sums of channels, for their means and variances: the same bits in whatever order samples come."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.exact_sums import ExactSums, add_exactly, as_floats, exact_sums
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


class ChannelAdder:
    """Totals of many tensors, all of a sample added at once; several threads may add to it.

    A network has a hundred tensors of few channels: to add each by itself would take ten times as long.
    """

    def __init__(self) -> None:
        # Samples may differ in which tensors they have: each kind has sums of its own.
        self._kinds: dict[_Kind, _Added] = {}
        self._lock = threading.Lock()

    def add(self, sample: Mapping[str, ChannelSums]) -> None:
        """Add the channel sums of one sample, except for tensors with a sum that is not finite."""
        parts = {name: _rows(part) for name, part in sample.items() if part[2]}
        if not parts:
            return
        flat = np.concatenate(list(parts.values()), axis=None)
        if not np.isfinite(flat).all():
            finite = {n: sample[n] for n, rows in parts.items() if np.isfinite(rows).all()}
            self.add(finite)
            return
        kind = tuple((name, *rows.shape) for name, rows in parts.items())
        positions = np.array([sample[name][2] for name in parts])
        with self._lock:
            if kind not in self._kinds:
                self._kinds[kind] = _Added(
                    exact_sums(np.zeros(flat.size)), np.zeros_like(positions)
                )
            added = self._kinds[kind]
            add_exactly(added.sums, flat)
            np.add(added.positions, positions, out=added.positions)

    def totals(self) -> dict[str, ChannelTotals]:
        """Return the totals of each tensor."""
        found: dict[str, ChannelTotals] = {}
        for kind, added in self._kinds.items():
            for name, new in added.by_name(kind):
                found[name] = found[name] | new if name in found else new
        return found


_Kind = tuple[tuple[str, int, int], ...]
"""Names of tensors, each with how many rows of sums of how many channels it has."""


def _rows(part: ChannelSums) -> FloatArray:
    """Return the sums of channels and those of their squares, if there are any, as rows."""
    sums, squares, _ = part
    rows = sums.reshape(1, -1) if squares is None else np.stack([sums, squares])
    return np.asarray(rows, np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class _Added:
    """Sums of all tensors one after the other, and the positions of each tensor."""

    sums: ExactSums
    positions: NDArray[np.int64]

    def by_name(self, kind: _Kind) -> Iterator[tuple[str, ChannelTotals]]:
        """Yield the totals of each tensor."""
        first = 0
        for (name, rows, channels), positions in zip(kind, self.positions, strict=True):
            mine = [self.sums[first + i * channels :][:channels].copy() for i in range(rows)]
            first += rows * channels
            squares = mine[1] if rows > 1 else None
            yield name, ChannelTotals(mine[0], squares, int(positions))
