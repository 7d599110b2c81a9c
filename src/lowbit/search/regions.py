"""Which parts of a graph to promote, and how far: as little as keeps the noise within a budget.

The noise that a part brings is measured with everything else in float. Noises of parts nearly add up, so
what to promote is a choice between cost and noise, part by part, at one price of noise for all. Parts that
are promoted are halved and measured again, so that a front end, a head, a block or single layers are found
alike. What is chosen is then measured as a whole, and the budget corrected by what that shows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

Region = frozenset[int]
Format: TypeAlias = Literal["narrow", "wide", "float"]

_CHUNKS = 12
_SMALL = 0.002
"""A part of this share of the cost is not halved any further."""

_COST: dict[Format, float] = {"narrow": 0.0, "wide": 0.25, "float": 1.0}
_CORRECTIONS, _EXACT_DB, _SPARE_DB = 5, 0.5, 0.2
_LEFT_TRIED = 4
_TELLING = 0.05
"""A part with so much of the noise that is allowed may be worth wider integers."""

_PRICES = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What is promoted: to wider integers, and to float."""

    wide: Region = frozenset()
    in_float: Region = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """A choice, what it costs, and how far inside the usable the model then was."""

    choice: Choice
    cost: float
    margin_db: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """Neighbouring units, what they cost in float, and the noise of each format of theirs."""

    units: tuple[int, ...]
    cost: float
    noise: tuple[tuple[Format, float], ...]

    def with_noise(self, word: Format, noise: float) -> _Part:
        """Return it with the noise of one format more."""
        return dataclasses.replace(self, noise=(*self.noise, (word, noise)))

    def chosen(self, price: float) -> Format:
        """Return the format that costs least when noise has a price."""
        return min(self.noise, key=lambda f: _COST[f[0]] * self.cost + price * f[1])[0]


Measure = Callable[[Choice], float]
MeasureAll = Callable[[Sequence[Choice]], Sequence[float]]
"""Measures choices that do not depend on each other."""


class RegionSearch:
    """Measures parts of a graph, and finds the cheapest choice for a margin."""

    def __init__(
        self, costs: Sequence[float], parts: MeasureAll, whole: Measure, *, has_wide: bool
    ) -> None:
        """Take the costs of the units of the graph, in its order, and what measures a choice.

        ``parts`` is asked for the margins of single parts, ``whole`` for that of a result.
        """
        self._costs, self._margins, self._whole = costs, parts, whole
        self._every: Region = frozenset(range(len(costs)))
        self._has_wide = has_wide
        self._parts = self._measured(_split(range(len(costs)), _CHUNKS))
        self._factor = 1.0

    def without_wide(self) -> RegionSearch:
        """Return the same without wider integers, where they turn out to be too narrow as well."""
        other = object.__new__(RegionSearch)
        other.__dict__ = {**self.__dict__, "_has_wide": False}
        other._parts = [
            dataclasses.replace(part, noise=tuple(n for n in part.noise if n[0] != "wide"))
            for part in self._parts
        ]
        return other

    def divide(self, wanted_db: float, effort: int) -> None:
        """Halve what would be promoted for a margin; ``effort`` is how many parts are measured."""
        while effort >= 2:
            promoted = [
                part
                for part, word in self._chosen(_noise(wanted_db))
                if word != "narrow" and len(part.units) > 1 and part.cost > _SMALL
            ]
            if not promoted:
                return
            costliest = sorted(promoted, key=lambda p: -p.cost)[: max(1, effort // 2)]
            halves = self._measured([half for part in costliest for half in _split(part.units, 2)])
            for number, part in enumerate(costliest):
                index = self._parts.index(part)
                self._parts[index : index + 1] = halves[2 * number : 2 * number + 2]
            effort -= len(halves)

    def one_part(self, least_db: float) -> Trial:
        """Return the choice of all but one part: the costliest that leaves a margin, or a quiet one."""
        noises = {part: dict(part.noise)["narrow"] for part in self._parts}
        allowed = _noise(least_db)
        # Of those that look quiet enough the costliest first, then the quietest for their cost.
        order = sorted(
            self._parts,
            key=lambda p: (0, -p.cost) if noises[p] <= allowed else (1, noises[p] / p.cost),
        )
        trials = []
        for part in order[:_LEFT_TRIED]:
            choice = Choice(in_float=self._every - frozenset(part.units))
            trials.append(Trial(choice, self._cost(choice), self._whole(choice)))
            if trials[-1].margin_db >= least_db:
                return trials[-1]
        return max(trials, key=lambda trial: trial.margin_db)

    def cheapest(self, wanted_db: float) -> Trial | None:
        """Return the cheapest choice that reaches a margin as a whole; ``None`` if it is all in float."""
        best: Trial | None = None
        seen: set[Choice] = set()
        self._measure_wide(_noise(wanted_db) * self._factor)
        for _ in range(_CORRECTIONS):
            choice = self._choice(_noise(wanted_db) * self._factor)
            if choice in seen:
                break
            seen.add(choice)
            trial = Trial(choice, self._cost(choice), self._whole(choice))
            enough = trial.margin_db >= wanted_db
            if enough and (best is None or trial.cost < best.cost):
                best = trial
            if enough and trial.margin_db < wanted_db + _EXACT_DB:
                break
            # Noises do not quite add up.
            missing = wanted_db + _SPARE_DB - max(trial.margin_db, wanted_db - 20.0)
            self._factor *= 10 ** (-min(missing, 20.0) / 10)
        return None if best is None or best.choice.in_float == self._every else best

    def expected_cost(self, wanted_db: float) -> float:
        """Return what a margin is expected to cost, as far as noises add up; nothing is measured."""
        return self._cost(self._choice(_noise(wanted_db) * self._factor))

    def _measured(self, parts: Sequence[Sequence[int]]) -> list[_Part]:
        margins = self._margins([Choice(in_float=self._every - frozenset(p)) for p in parts])
        return [
            _Part(
                tuple(units),
                sum(self._costs[i] for i in units),
                (("narrow", _noise(margin)), ("float", 0.0)),
            )
            for units, margin in zip(parts, margins, strict=True)
        ]

    def _measure_wide(self, budget: float) -> None:
        """Measure wider integers where 8 bits bring much of the noise that is allowed."""
        noises = [dict(part.noise) for part in self._parts if self._has_wide]
        telling = [
            index
            for index, noise in enumerate(noises)
            if "wide" not in noise and noise["narrow"] > _TELLING * budget
        ]
        units = [frozenset(self._parts[index].units) for index in telling]
        margins = self._margins([Choice(some, self._every - some) for some in units])
        for index, margin in zip(telling, margins, strict=True):
            self._parts[index] = self._parts[index].with_noise("wide", _noise(margin))

    def _chosen(self, budget: float) -> list[tuple[_Part, Format]]:
        """Return the format of each part: cheap together, and within the budget."""
        price = self._price(budget)
        chosen = [(part, part.chosen(price)) for part in self._parts]
        left = budget - sum(dict(part.noise)[word] for part, word in chosen)
        # What one price for all leaves is filled up; parts that are alike change at the same price.
        for index, (part, word) in sorted(enumerate(chosen), key=lambda c: -c[1][0].cost):
            noise = dict(part.noise)
            if word != "narrow" and noise["narrow"] - noise[word] <= left:
                left -= noise["narrow"] - noise[word]
                chosen[index] = (part, "narrow")
        return chosen

    def _price(self, budget: float) -> float:
        """Return the lowest price at which the noise of all parts is within a budget."""
        low, high = -12.0, 12.0
        for _ in range(_PRICES):
            middle = (low + high) / 2
            price = 10**middle
            total = sum(dict(part.noise)[part.chosen(price)] for part in self._parts)
            low, high = (low, middle) if total <= budget else (middle, high)
        return float(10**high)

    def _choice(self, budget: float) -> Choice:
        chosen = self._chosen(budget)
        regions = {
            word: frozenset(i for part, w in chosen if w == word for i in part.units)
            for word in ("wide", "float")
        }
        return Choice(regions["wide"], regions["float"])

    def _cost(self, choice: Choice) -> float:
        wide = sum(self._costs[i] for i in choice.wide)
        return _COST["wide"] * wide + sum(self._costs[i] for i in choice.in_float)


def _noise(margin_db: float) -> float:
    """Return the noise of a margin; 1 is what just is usable."""
    return (
        float(10 ** (-min(max(margin_db, -60.0), 120.0) / 10)) if not math.isnan(margin_db) else 1e6
    )


def _split(items: Sequence[int], parts: int) -> list[list[int]]:
    """Return runs of nearly equal length."""
    parts = min(parts, len(items))
    bounds = [round(i * len(items) / parts) for i in range(parts + 1)] if parts else []
    return [list(items[a:b]) for a, b in itertools.pairwise(bounds)]


def runs_of(region: Region) -> list[list[int]]:
    """Return the units of a region as runs of neighbours."""
    runs: list[list[int]] = []
    for index in sorted(region):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs
