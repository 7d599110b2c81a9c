"""Which samples calibrate and which verify: never the same ones where there are enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from lowbit.data import Data, Sample


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A data set with the numbers of the samples that are held out of calibration."""

    data: Data
    total: int
    held: frozenset[int]
    checked: frozenset[int]

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
    if extra:
        held = frozenset(_spread(total, extra))
        return Split(data, total, held, held)
    return Split(data, total, frozenset(), frozenset(_spread(total, min(held_out, total))))


def _spread(total: int, count: int) -> list[int]:
    if count <= 0:
        return []
    return [int(i) for i in np.linspace(0, total - 1, count + 2)[1:-1].round()] or [0]
