"""Which samples calibrate and which verify: never the same ones where there are enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from lowbit.data import Data, Sample

_ENOUGH_TO_HOLD_BACK = 16
_MOST_JUDGES = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """Samples that can be gone through more than once."""

    start: Callable[[], Iterator[Sample]]

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples from the first one on."""
        return self.start()


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A data set with the numbers of the samples that are held out of calibration."""

    data: Data
    total: int
    held: frozenset[int]
    checked: frozenset[int]
    judges: frozenset[int]

    @property
    def holds_back(self) -> bool:
        """Whether there are enough samples to choose between steps on some and fit on others."""
        return len(self.judges) < self.calibration_count

    @property
    def held_out(self) -> bool:
        """Whether verification sees samples that calibration does not."""
        return bool(self.held)

    @property
    def calibration_count(self) -> int:
        """How many samples calibrate."""
        return self.total - len(self.held)

    @property
    def verification_count(self) -> int:
        """How many samples verify."""
        return len(self.checked)

    def calibration(self) -> Iterator[Sample]:
        """Yield the samples to calibrate on."""
        return (s for i, s in enumerate(self.data) if i not in self.held)

    def fitting(self) -> Iterator[Sample]:
        """Yield the samples to calibrate on where others choose between steps."""
        left_out = self.held | self.judges if self.holds_back else self.held
        return (s for i, s in enumerate(self.data) if i not in left_out)

    def judging(self) -> Iterator[Sample]:
        """Yield the samples to choose between steps on."""
        return (s for i, s in enumerate(self.data) if i in self.judges)

    def verification(self) -> Iterator[Sample]:
        """Yield the samples to verify on."""
        return (s for i, s in enumerate(self.data) if i in self.checked)

    def first(self) -> Sample | None:
        """Return one sample."""
        return next(iter(self.data), None)


def split(data: Data, limit: int | None, held_out: int) -> Split:
    """Hold out what the data has beyond ``limit``, spread evenly over it.

    Without a limit every sample calibrates, and ``held_out`` of them verify as well.
    """
    total = len(data)
    extra = 0 if limit is None else min(max(total - limit, 0), held_out)
    held = frozenset(_spread(total, extra))
    checked = held or frozenset(_spread(total, min(held_out, total)))
    return Split(data, total, held, checked, _judges(total, held))


def _judges(total: int, held: frozenset[int]) -> frozenset[int]:
    """Return an eighth of the samples that calibrate, spread over them; of few, all."""
    left = [i for i in range(total) if i not in held]
    if len(left) < _ENOUGH_TO_HOLD_BACK:
        return frozenset(left)
    return frozenset(left[i] for i in _spread(len(left), min(len(left) // 8, _MOST_JUDGES)))


def _spread(total: int, count: int) -> list[int]:
    if count <= 0:
        return []
    return [int(i) for i in np.linspace(0, total - 1, count + 2)[1:-1].round()] or [0]
