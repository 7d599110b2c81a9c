"""Split the data into samples that calibrate, validate and verify: disjoint where there are enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lowbit.data import Data, Sample
from lowbit.data.shards import Selection
from lowbit.errors import DataError
from lowbit.numerics.spacing import evenly_inside

_ENOUGH_TO_HOLD_OUT = 16
_MOST_VALIDATION = 16
_MOST_CALIBRATION, _MOST_RANKING, _LEAST_CONFIRMING = 256, 64, 2
_LEAST_VERIFYING = 8

VERIFIED = 32
"""How many samples verify where nobody says how many."""


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A dataset with the numbers of the samples that are held out of calibration.

    Attributes:
        data: All samples.
        total: How many there are.
        held_out: Samples that nothing but verification sees.
        verifying: Samples to verify on: those held out, or some of the others if there are none.
        validating: Samples on which it is decided which steps are kept.
        excluded: Samples that do not calibrate: those held out, and those that validate where the
            data has enough for both.
        stops_early: Whether the rest of those that verify are not run where some of them leave no doubt.
    """

    data: Data
    total: int
    held_out: frozenset[int]
    verifying: frozenset[int]
    validating: frozenset[int]
    excluded: frozenset[int]
    stops_early: bool = False

    @property
    def is_verified_on_held_out(self) -> bool:
        """Whether verification sees samples that calibration does not."""
        return bool(self.held_out)

    @property
    def calibration_count(self) -> int:
        """How many samples calibrate."""
        return self.total - len(self.excluded)

    @property
    def verification_count(self) -> int:
        """How many samples verify."""
        return len(self.verifying)

    def calibration(self) -> Selection:
        """Return the samples to calibrate on."""
        return self._all_but(self.excluded)

    def fitting(self) -> Selection:
        """Return the samples to calibrate on where others decide which steps are kept."""
        enough = len(self.validating - self.excluded) < self.calibration_count
        return self._all_but(self.excluded | self.validating if enough else self.excluded)

    def validation(self) -> Iterator[Sample]:
        """Yield the samples that decide which steps are kept, in rounds like those that verify."""
        return self._in_rounds(self.validating)

    def verification(self) -> Iterator[Sample]:
        """Yield the samples to verify on."""
        return self.data.select(sorted(self.verifying))

    def verification_in_rounds(self) -> Iterator[Sample]:
        """Yield the same, the first quarter, half and three quarters of them from all over the data."""
        return self._in_rounds(self.verifying)

    def _in_rounds(self, numbers: frozenset[int]) -> Iterator[Sample]:
        left, count = sorted(numbers), len(numbers)
        for end in (*quarters_of(count), count):
            size = end - (count - len(left))
            part = [left[i * len(left) // size] for i in range(size)]
            left = sorted({*left}.difference(part))
            yield from self.data.select(part)

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many of them it is asked whether the others could still change the verdict's level."""
        if not self.stops_early:
            return ()
        return tuple(n for n in quarters_of(self.verification_count) if n >= _LEAST_VERIFYING)

    def fingerprint(self) -> str:
        """Return a word for all samples, and which of them do what."""
        groups = (self.held_out, self.verifying, self.validating, self.excluded)
        return f"{self.data.fingerprint()} {[sorted(group) for group in groups]}"

    def first(self) -> Sample | None:
        """Return one sample."""
        return next(self.data.select([0]), None)

    def _all_but(self, left: frozenset[int]) -> Selection:
        if not left:
            return Selection(self.data, range(self.total))
        return Selection(self.data, [i for i in range(self.total) if i not in left])


def split(data: Data, limit: int | None, held_out: int, validation: int = 0) -> Split:
    """Hold out what the data has beyond ``limit``, spread evenly over it.

    ``validation`` more samples are to validate; where the data has not enough for both, they are
    among those that calibrate. Without a limit every sample calibrates, and ``held_out`` of them
    verify as well.
    """
    total = len(data)
    extra = 0 if limit is None else max(total - limit, 0)
    apart = 0 < validation <= max(extra - held_out, extra // 2)
    held = frozenset(_spread(total, min(extra - validation * apart, held_out)))
    verifying = held or frozenset(_spread(total, min(held_out, total)))
    left = [i for i in range(total) if i not in held]
    count = validation if apart else validation_count(len(left))
    # Of few samples all validate, and calibrate as well.
    validating = frozenset(left[i] for i in _spread(len(left), count)) if count else frozenset(left)
    return Split(data, total, held, verifying, validating, held | validating if apart else held)


def split_for_goal(data: Data, limit: int | None, verified: int) -> Split:
    """Divide all samples: some calibrate, some rank candidates, all others confirm the goal.

    Without a limit at most half of them calibrate. ``verified`` of those that confirm verify at the end.
    """
    total = len(data)
    kept = min(max(total // 2, 1), _MOST_CALIBRATION) if limit is None else limit
    rest = total - kept
    ranking = min(rest // 3, _MOST_RANKING)
    confirming = rest - ranking
    if ranking < 1 or confirming < _LEAST_CONFIRMING:
        raise DataError(
            f"a goal is confirmed on samples that nothing else has seen, but of {total} samples {kept} "
            f"calibrate, which leaves {max(rest, 0)}: give more data, or a lower limit (--limit)"
        )
    found = split(data, kept, confirming, ranking)
    held = sorted(found.held_out)
    verifying = frozenset(held[i] for i in _spread(len(held), min(verified, len(held))))
    return dataclasses.replace(found, verifying=verifying)


def quarters_of(count: int) -> tuple[int, int, int]:
    """Return after how many of so many samples a quarter, half and three quarters of them are done."""
    return count // 4, count // 2, count - count // 4


def validation_count(limit: int) -> int:
    """Return how many samples validate in addition to so many that calibrate; with few, none of their own."""
    return min(limit // 8, _MOST_VALIDATION) if limit >= _ENOUGH_TO_HOLD_OUT else 0


def _spread(total: int, count: int) -> list[int]:
    inside = evenly_inside(total, count)
    if len(inside) == count or count <= 0:
        return inside
    # Nearly all of them: those between the ends would round to the same.
    return [(2 * i + 1) * total // (2 * count) for i in range(min(count, total))]
