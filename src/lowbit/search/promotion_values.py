"""The requirements and results of promotion."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

from lowbit.config.specs import Rule
from lowbit.evaluate.output_errors import OutputErrors
from lowbit.report.values import PromotedRegion
from lowbit.search.switched_model import is_run_in_parts
from lowbit.state import Quantized

_WANTED_DB = 0.7
"""How far inside the usable a promoted model is to be, beyond the error of the samples that are tried."""

_LEAST_DB = 0.3

_MORE_DB = 1.0
"""The least increase of the requirement after a model that was not usable."""

_NEAR_DB = 1.5
"""A margin that is larger by less than this is not worth another model."""

_TOO_NARROW_DB = 4.0

Margin = Callable[[OutputErrors], float]


def usable_margin(errors: OutputErrors) -> float:
    """Return how far inside the usable a model is, in decibels."""
    verdict = errors.verdict(held_out=True)
    return -math.inf if verdict is None else verdict.margin_db


def safe_margin(errors: OutputErrors) -> float:
    """Return the same if every figure is worse by its standard error."""
    verdict = errors.verdict(held_out=True)
    return -math.inf if verdict is None else verdict.safe_margin_db


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """The effort, counted in models run or built, so that every machine finds the same.

    Attributes:
        parts: Parts of parts that are measured.
        built: Models that are built.
        rounds: Models that are refined and verified.
        tries_scales: Whether other scales are tried.
    """

    parts: int = 30
    built: int = 5
    rounds: int = 3
    tries_scales: bool = True


_BRIEF = Effort(built=3, rounds=1, tries_scales=False)


def effort_for(state: Quantized) -> Effort:
    """Return how much is tried for a model.

    Where it has many nodes every pass opens all of them anew, and promotion is not to take longer than all else.
    """
    return _BRIEF if is_run_in_parts(state) else Effort()


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """The requirement of promotion: a margin, where it is counted from, and why.

    Noises of parts add up as ``part`` counts them, without what is to be on the safe side.
    """

    margin: Margin = safe_margin
    wanted_db: float = _WANTED_DB
    least_db: float = _LEAST_DB
    why: str = "the model is not usable without it"
    part: Margin = usable_margin

    def raised(self, promised_db: float) -> Requirement:
        """Return a higher requirement, after other samples gave so much less than the search promised."""
        more = max(promised_db + _WANTED_DB - self.wanted_db, _MORE_DB)
        return dataclasses.replace(
            self, wanted_db=self.wanted_db + more, least_db=self.least_db + more
        )

    def lowered(self, spare_db: float) -> Requirement:
        """Return a lower requirement, where refinement gains so much in addition."""
        return dataclasses.replace(
            self, wanted_db=self.wanted_db - spare_db, least_db=self.least_db - spare_db
        )


USABLE = Requirement()


@dataclasses.dataclass(frozen=True, slots=True)
class AskedMargin:
    """The margin that is asked of the search, between one that was too little and one that was enough.

    A model that is built may be worse or far better than the search foresees from quantizers that are
    switched off: tensors in float share scales with no others, and weights are rounded anew.
    """

    db: float
    too_little: float = -math.inf
    enough: float = math.inf

    def after(self, spare_db: float) -> AskedMargin | None:
        """Return the next, after a model with so much more margin than is needed; ``None`` if that is near."""
        if 0 <= spare_db < _NEAR_DB:
            return None
        if spare_db < 0:
            low, high, found = self.db, self.enough, self.db + max(1.0, -spare_db)
        else:
            low, high, found = self.too_little, self.db, self.db - spare_db
        if high - low < _NEAR_DB / 2:
            return None
        return AskedMargin(found if low < found < high else (low + high) / 2, low, high)


MORE_DB, COST_PER_DB = 10, 0.01
"""The decibels of margin, beyond the required ones, that count, and the share of the cost each may take."""


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """A model that was built, how far inside what is required it is, and what it costs."""

    margin_db: float
    cost: float
    state: Quantized
    rules: tuple[Rule, ...]

    def sort_key(self, least_db: float) -> tuple[bool, float]:
        """Return a sort key: models with enough margin come last, ordered by cost and margin."""
        is_enough = self.margin_db >= least_db
        return is_enough, self.bonus(least_db) - self.cost if is_enough else self.margin_db

    def bonus(self, least_db: float) -> float:
        """Return the cost that its margin beyond the required one may take."""
        return COST_PER_DB * min(self.margin_db - least_db, MORE_DB)


Changes: TypeAlias = tuple[tuple[PromotedRegion, ...], tuple[str, ...]]
"""The differences between promoted models: regions, and tensors with other scales."""


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
    def changes(self) -> Changes:
        """The changes of this model."""
        return self.regions, self.rescaled

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


def is_too_narrow(margin_db: float, expected_db: float) -> bool:
    """Whether a model with 16-bit activations is worse than without any, and not usable."""
    return margin_db < min(0.0, expected_db - _TOO_NARROW_DB)
