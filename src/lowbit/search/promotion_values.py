"""What promotion is to reach, and what it found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from lowbit.evaluate.verdict import OutputErrors
from lowbit.report.values import PromotedRegion
from lowbit.state import Quantized

_WANTED_DB = 0.7
"""How far inside the usable a promoted model is to be, beyond the error of the samples that are tried."""

_LEAST_DB = 0.3

_OF_ERROR = 0.5
"""What of the standard error is taken off: samples that are spread from strong to weak vary less than any do."""

Margin = Callable[[OutputErrors], float]


def usable_margin(errors: OutputErrors) -> float:
    """Return how far inside the usable a model is, in decibels."""
    verdict = errors.verdict(held_out=True)
    return -math.inf if verdict is None else verdict.margin_db


def safe_margin(errors: OutputErrors) -> float:
    """Return the same if every figure is worse by what the samples of a search vary."""
    verdict = errors.verdict(held_out=True)
    if verdict is None:
        return -math.inf
    return min(row.margin_db - _OF_ERROR * row.error_db for row in verdict.outputs)


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """What promotion is to reach: a margin, where it is counted from, and why.

    Noises of parts add up as ``part`` counts them, without what is to be on the safe side.
    """

    margin: Margin = safe_margin
    wanted_db: float = _WANTED_DB
    least_db: float = _LEAST_DB
    why: str = "the model is not usable without it"
    part: Margin = usable_margin

    def raised(self, promised_db: float) -> Requirement:
        """Return a higher one, after other samples gave so much less than those of the search."""
        more = max(promised_db, self.wanted_db)
        return dataclasses.replace(
            self, wanted_db=self.wanted_db + more, least_db=self.least_db + more
        )

    def lowered(self, spare_db: float) -> Requirement:
        """Return a lower one, where refinement brings so much besides."""
        return dataclasses.replace(
            self, wanted_db=self.wanted_db - spare_db, least_db=self.least_db - spare_db
        )


USABLE = Requirement()


@dataclasses.dataclass(frozen=True, slots=True)
class Promoted:
    """The model after promotion, what of it was promoted, and what that brought in decibels.

    ``rescaled`` are the tensors that got other scales.
    """

    state: Quantized
    regions: tuple[PromotedRegion, ...]
    before_db: float
    after_db: float
    tried: int
    rescaled: tuple[str, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether anything was found."""
        return bool(self.regions or self.rescaled)

    def where(self) -> str:
        """Return the first regions in words."""
        more = f"; and {len(self.regions) - 3} more" if len(self.regions) > 3 else ""
        found = ["; ".join(region.describe() for region in self.regions[:3]) + more]
        if self.rescaled:
            found.append(f"other scales for {', '.join(self.rescaled)}")
        return "; ".join(text for text in found if text)

    def describe(self) -> str:
        """Return it in words, for the notes of a report."""
        if not self.is_changed:
            return "promotion found nothing that makes the model usable"
        promoted = "promoted " if self.regions else ""
        return (
            f"{promoted}{self.where()}: noise {self.after_db - self.before_db:.1f} dB lower on "
            f"validation samples, {self.tried} candidates tried (--no-promote keeps the first plan)"
        )
