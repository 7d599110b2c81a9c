"""The figures that outputs are measured by, and the levels that they mean."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from lowbit.evaluate.output_kinds import Kind, MeasuredOutput
from lowbit.numerics.intervals import TAIL, normal_quantile

Level: TypeAlias = Literal["good", "usable", "poor", "ruined"]
_MOST_DIGITS = 6
LEVELS: tuple[Level, ...] = ("good", "usable", "poor", "ruined")


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """The metric of an output, and the limits of its levels.

    ``limits`` are the last values that are good, usable and poor.
    """

    name: str
    unit: str
    limits: tuple[float, float, float]
    higher_is_better: bool

    def level(self, value: float) -> Level:
        """Return the level of a value; what is no number is ruined."""
        sign = 1 if self.higher_is_better else -1
        for level, limit in zip(LEVELS, self.limits, strict=False):
            if sign * value >= sign * limit:
                return level
        return "ruined"

    def range(self, value: float, half: float) -> tuple[Level, Level]:
        """Return the levels at the worse and the better end of an interval, of which this is half."""
        if not math.isfinite(half):
            return self.level(value), self.level(value)
        signed = half if self.higher_is_better else -half
        return self.level(value - signed), self.level(value + signed)

    def sure_level(self, value: float, error: float) -> Level:
        """Return the level of a value; only one that is so for certain is ruined."""
        level = self.level(value)
        best = self.range(value, normal_quantile(TAIL) * error)[1]
        return "poor" if level == "ruined" != best else level

    def error_db(self, value: float, error: float) -> float:
        """Return by how many decibels of noise a value that is worse by its error is further outside."""
        if not math.isfinite(error):
            return 0.0
        worse = value - error if self.higher_is_better else value + error
        return self.margin_db(value) - self.margin_db(worse)

    def margin_db(self, value: float) -> float:
        """Return by how many decibels of noise a value is inside what is usable."""
        limit = self.limits[1]
        if self.higher_is_better and self.unit == "dB":
            return value - limit
        noise, allowed = (1 - value, 1 - limit) if self.higher_is_better else (value, limit)
        return 10 * math.log10(allowed / max(noise, 1e-12)) if not math.isnan(noise) else -math.inf


_SQNR = Figure("SQNR", "dB", (25.0, 15.0, 8.0), higher_is_better=True)
FIGURES: Mapping[Kind, Figure] = MappingProxyType(
    {
        "classes": Figure("KL divergence", "", (0.05, 0.2, 1.0), higher_is_better=False),
        "labels": Figure("agreement", "", (0.98, 0.95, 0.8), higher_is_better=True),
        "embedding": Figure("cosine", "", (0.99, 0.96, 0.85), higher_is_better=True),
        "scores": _SQNR,
        "values": _SQNR,
    }
)
GOALS: Mapping[str, Figure] = MappingProxyType(
    {
        "sqnr": _SQNR,
        "kl": FIGURES["classes"],
        "agreement": FIGURES["labels"],
        "cosine": FIGURES["embedding"],
    }
)
"""Figures without labels that can be asked for by name."""

_BINARY = Figure("KL divergence", "", (0.05, 0.2, 1.0), higher_is_better=False)


BEST_CLASS = Figure("same best class", "", (0.93, 0.82, 0.5), higher_is_better=True)
"""The second figure of outputs that are one decision per sample: how often decisions agree."""


def figure_of(measured: MeasuredOutput) -> Figure:
    """Return what an output is measured by."""
    if measured.kind == "labels" and measured.logits:
        return _BINARY
    return FIGURES[measured.kind]


def with_error(value: float, error: float, unit: str) -> str:
    """Return a figure to the place that its error leaves sure: ``0.0373 ± 0.0095``."""
    known = math.isfinite(error) and error > 0
    if unit == "dB":
        return f"{value:.1f} ± {error:.1f} dB" if known else f"{value:.1f} dB"
    if not known or not math.isfinite(value):
        return f"{value:.3g}"
    digits = min(max(1 - math.floor(math.log10(error)), 0), _MOST_DIGITS)
    return f"{value:.{digits}f} ± {error:.{digits}f}"
