"""Split outputs with values of different magnitudes, such as boxes and scores, into slices.

The SQNR of such an output is that of its largest values: boxes of hundreds of pixels drown scores
below one. Where the channels fall into runs of different magnitudes, each run is measured by itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from lowbit.graph.session import Array
from lowbit.numerics.metrics import SignalNoise

_APART = 8.0
"""The ratio of magnitudes from which on two runs of channels are separate slices."""

_MOST_CHANNELS = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class OutputSlice:
    """A run of channels of an output, or all of it (``axis`` is ``None``)."""

    output: str
    axis: int | None = None
    start: int = 0
    stop: int = 0

    @property
    def name(self) -> str:
        """The output, with the run of channels if it is one."""
        if self.axis is None:
            return self.output
        return f"{self.output}[{':, ' * self.axis}{self.start}:{self.stop}]"

    def of(self, array: Array) -> Array:
        """Return this slice of the output's value."""
        if self.axis is None:
            return array
        return array[(slice(None),) * self.axis + (slice(self.start, self.stop),)]


def find_slices(
    outputs: Mapping[str, Array],
    open_axes: Mapping[str, frozenset[int]] = MappingProxyType({}),
) -> tuple[OutputSlice, ...]:
    """Return the slices of each float output, from one sample of it.

    Channels do not lie along ``open_axes``, whose sizes differ between samples.
    """
    found: list[OutputSlice] = []
    for name, array in outputs.items():
        if array.dtype.kind != "f" or array.size == 0:
            continue
        axes = [axis for axis in _axes(array) if axis not in open_axes.get(name, ())]
        runs = max((_runs(array, axis) for axis in axes), key=len, default=[])
        if len(runs) < 2:
            found.append(OutputSlice(name))
        else:
            axis = next(a for a in axes if _runs(array, a) == runs)
            found += [OutputSlice(name, axis, start, stop) for start, stop in runs]
    return tuple(found)


def _axes(array: Array) -> tuple[int, ...]:
    """Return the axes that may hold channels; a list of scores has none."""
    if array.ndim < 3:
        return ()
    axes = (1,) if array.ndim > 3 else (1, array.ndim - 1)
    return tuple(axis for axis in axes if 1 < array.shape[axis] <= _MOST_CHANNELS)


def _runs(array: Array, axis: int) -> list[tuple[int, int]]:
    """Return the longest runs of channels that are of one magnitude and apart from the next."""
    others = tuple(a for a in range(array.ndim) if a != axis)
    size = np.sqrt(np.mean(np.square(array, dtype=np.float64), axis=others))
    low = np.minimum.accumulate(size)
    high = np.maximum.accumulate(size)
    low_after = np.minimum.accumulate(size[::-1])[::-1]
    high_after = np.maximum.accumulate(size[::-1])[::-1]
    cuts = [
        i
        for i in range(1, len(size))
        if low[i - 1] > _APART * high_after[i] or low_after[i] > _APART * high[i - 1]
    ] or _score_cuts(array, others)
    # Values that thin out channel by channel are a slope, not runs.
    if not cuts or len(cuts) > 3:
        return []
    return list(itertools.pairwise([0, *cuts, len(size)]))


def _score_cuts(array: Array, others: tuple[int, ...]) -> list[int]:
    """Return where channels that can be probabilities meet others: scores and boxes."""
    low = array.min(axis=others)
    inside = (low >= 0) & (array.max(axis=others) <= 1)
    if not np.any(low[~inside] < 0):
        return []
    return [int(i) + 1 for i in np.flatnonzero(inside[1:] != inside[:-1])]


class SliceErrors:
    """Signal and noise of each slice, added up over samples."""

    def __init__(self, slices: Sequence[OutputSlice]) -> None:
        self._slices = slices
        self._sums = [SignalNoise() for _ in slices]

    def add(self, want: Mapping[str, Array], got: Mapping[str, Array]) -> None:
        """Add one sample."""
        for index, part in enumerate(self._slices):
            expected, found = want.get(part.output), got.get(part.output)
            if expected is None or found is None or expected.shape != found.shape:
                continue  # a sequence of another length, or sizes that data decide
            self._sums[index] |= SignalNoise.of(part.of(expected), part.of(found))

    def by_name(self) -> dict[str, SignalNoise]:
        """Return the figures of each slice, by its name."""
        return {part.name: sums for part, sums in zip(self._slices, self._sums, strict=True)}

    @property
    def noise(self) -> float:
        """Noise as a share of the signal, the mean over all slices."""
        shares = [s.noise / s.signal if s.signal else math.nan for s in self._sums]
        known = [share for share in shares if not math.isnan(share)]
        return sum(known) / len(known) if known else math.nan
