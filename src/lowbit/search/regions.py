"""Choose which parts of a graph to promote, and to which format: as little as keeps the noise within a budget.

The noise that a part brings is measured with everything else in float. Noises of parts nearly add up, so
what to promote is a choice between cost and noise, part by part, at one price of noise for all. Parts that
are promoted are divided and measured again, so that a front end, a head, a block or single layers are found
alike. What is chosen is then measured as a whole, and the budget corrected by what that shows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias

from lowbit.numerics.spacing import even_bounds

Region = frozenset[int]
Format: TypeAlias = Literal["narrow", "wide", "float"]

_CHUNKS = 12
_SMALL = 0.001
"""A unit of more than this share of the cost is a layer; cheaper ones belong to the layer before them."""

_LITTLE = 0.01
"""A part that can save no more than this share of the cost is not divided."""

_AT_ONCE = 4
"""Up to this number of layers, each is measured by itself."""

_COST: dict[Format, float] = {"narrow": 0.0, "wide": 0.25, "float": 1.0}
_CORRECTIONS, _STEPS, _EXACT_DB, _SPARE_DB = 4, 20, 0.5, 0.3
"""Choices that are measured as a whole, steps to find them, and when a margin is near enough."""
_LEFT_TRIED = 4
_PRICES = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The nodes to promote: to wider integers, and to float."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class _Bracket:
    """A factor of the budget, between one that was enough and one that was too much."""

    factor: float
    enough: float = 0.0
    too_much: float = math.inf

    @property
    def is_narrow(self) -> bool:
        """Whether no other choice can be expected in between."""
        return self.too_much < 1.02 * self.enough

    def after(self, spare_db: float) -> _Bracket:
        """Return the next bracket, after a choice with ``spare_db`` of margin left; noises add up only roughly."""
        is_enough = spare_db >= 0
        enough = self.factor if is_enough else self.enough
        too_much = self.too_much if is_enough else self.factor
        step = 10 ** (min(max(spare_db - _SPARE_DB, -20.0), 20.0) / 10)
        factor = self.factor * step
        if not enough < factor < too_much or (enough and too_much < math.inf):
            factor = math.sqrt(enough * too_much) if enough else too_much / 2
        return _Bracket(factor, enough, too_much)


Measure = Callable[[Choice], float]
MeasureAll = Callable[[Sequence[Choice]], Sequence[float]]
"""Measures choices that do not depend on each other."""


class RegionSearch:
    """Measures parts of a graph, and finds the cheapest choice for a margin."""

    def __init__(
        self,
        costs: Sequence[float],
        parts: MeasureAll,
        whole: Measure,
        *,
        wide_is_enough: Callable[[], bool] | None = None,
    ) -> None:
        """Take the costs of the units of the graph, in its order, and what measures a choice.

        ``parts`` is asked for the margins of single parts, ``whole`` for that of a result, and ``wide_is_enough``
        once, before wider integers are measured, whether they are wide enough for the model.
        """
        self._costs, self._margins, self._whole = costs, parts, whole
        self._every: Region = frozenset(range(len(costs)))
        self._wide_is_enough = wide_is_enough
        self._parts = self._measured(_split(range(len(costs)), _CHUNKS))
        self._is_wide_known = False
        self._factor = 1.0
        self._trials: dict[Choice, Trial] = {}

    def without_wide(self) -> RegionSearch:
        """Return the same without wider integers, where they turn out to be too narrow as well."""
        other = object.__new__(RegionSearch)
        other.__dict__ = {**self.__dict__, "_wide_is_enough": None, "_factor": 1.0}
        other._trials = {choice: t for choice, t in self._trials.items() if not choice.wide}
        other._parts = [
            dataclasses.replace(part, noise=tuple(n for n in part.noise if n[0] != "wide"))
            for part in self._parts
        ]
        return other

    def divide(self, wanted_db: float, effort: int) -> None:
        """Divide the parts where most may be saved; ``effort`` is how many parts are measured."""
        budget = noise_of(wanted_db)
        while effort >= 2:
            saved = self._savings(budget)
            pieces: dict[_Part, list[list[int]]] = {}
            for part in sorted(saved, key=lambda p: -saved[p]):
                found = self._pieces(part)
                if 1 < len(found) <= effort and saved[part] >= max(saved.values()) / 2:
                    pieces[part] = found
                    effort -= len(found)
            if not pieces:
                break
            measured = iter(self._measured([units for some in pieces.values() for units in some]))
            for part, some in pieces.items():
                index = self._parts.index(part)
                self._parts[index : index + 1] = itertools.islice(measured, len(some))
        self._measure_wide(budget)

    def _savings(self, budget: float) -> dict[_Part, float]:
        """Return what dividing a part may save at the very most: its cost in float, or the price of its noise."""
        price = self._price(budget)
        saved = {p: min(p.cost, price * dict(p.noise)["narrow"]) for p in self._parts}
        return {p: s for p, s in saved.items() if s > _LITTLE and len(self._pieces(p)) > 1}

    def _pieces(self, part: _Part) -> list[list[int]]:
        """Return what a part is divided into: layers, if they are few, or halves.

        A cheap layer between costly ones may bring most of their noise, as a depthwise convolution does.
        """
        layers: list[list[int]] = []
        for unit in part.units:
            if layers and self._costs[unit] <= _SMALL:
                layers[-1].append(unit)
            else:
                layers.append([unit])
        if len(layers) == 1:
            return _split(part.units, 2)
        if len(layers) <= _AT_ONCE:
            return layers
        halves = _split(range(len(layers)), 2)
        return [list(itertools.chain(*(layers[i] for i in half))) for half in halves]

    def one_part(self, least_db: float, refused: Collection[Choice] = ()) -> Trial | None:
        """Return the choice of all but one part: the costliest that leaves a margin, or a quiet one.

        ``refused`` are choices that quantize nothing; ``None`` if no other is left.
        """
        noises = {part: dict(part.noise)["narrow"] for part in self._parts}
        allowed = noise_of(least_db)
        # Of those that look quiet enough the costliest first, then the quietest for their cost.
        order = sorted(
            self._parts,
            key=lambda p: (0, -p.cost) if noises[p] <= allowed else (1, noises[p] / p.cost),
        )
        choices = [Choice(in_float=self._every - frozenset(part.units)) for part in order]
        trials = []
        for choice in [c for c in choices if c not in refused][:_LEFT_TRIED]:
            trials.append(self._tried(choice))
            if trials[-1].margin_db >= least_db:
                return trials[-1]
        return max(trials, key=lambda trial: trial.margin_db, default=None)

    def cheapest(self, wanted_db: float, most_cost: float = math.inf) -> Trial | None:
        """Return the cheapest choice that reaches a margin as a whole; ``None`` if it is all in float.

        What costs more than ``most_cost`` is not measured.
        """
        noise, bracket = noise_of(wanted_db), _Bracket(self._factor)
        self._measure_wide(noise * self._factor)
        most = len(self._trials) + _CORRECTIONS
        for _ in range(_STEPS):
            choice = self._choice(noise * bracket.factor)
            if choice not in self._trials and len(self._trials) == most:
                break
            if self._cost(choice) > most_cost:
                break
            spare_db = self._tried(choice).margin_db - wanted_db
            if spare_db >= 0:
                self._factor = bracket.factor
            if 0 <= spare_db < _EXACT_DB or bracket.is_narrow:
                break
            bracket = bracket.after(spare_db)
        return self.best(wanted_db, lambda trial: -trial.cost)

    def best(self, least_db: float, value: Callable[[Trial], float]) -> Trial | None:
        """Return the measured choice of highest value; ``None`` if that is all in float."""
        enough = [t for t in self._trials.values() if t.margin_db >= least_db]
        best = max(enough, key=value, default=None)
        return None if best is None or best.choice.in_float == self._every else best

    def _tried(self, choice: Choice) -> Trial:
        """Return a choice with its margin as a whole, measured once."""
        if choice not in self._trials:
            self._trials[choice] = Trial(choice, self._cost(choice), self._whole(choice))
        return self._trials[choice]

    def expected_cost(self, wanted_db: float) -> float:
        """Return what a margin is expected to cost, as far as noises add up; nothing is measured."""
        return self._cost(self._choice(noise_of(wanted_db) * self._factor))

    def _measured(self, parts: Sequence[Sequence[int]]) -> list[_Part]:
        margins = self._margins([Choice(in_float=self._every - frozenset(p)) for p in parts])
        return [
            _Part(
                tuple(units),
                sum(self._costs[i] for i in units),
                (("narrow", noise_of(margin)), ("float", 0.0)),
            )
            for units, margin in zip(parts, margins, strict=True)
        ]

    def _measure_wide(self, budget: float) -> None:
        """Measure wider integers where they may be cheaper than 8 bits or float."""
        if self._wide_is_enough is None:
            return
        price, wide = self._price(budget), _COST["wide"]
        noises = [dict(part.noise) for part in self._parts]
        telling = [
            index
            for index, (part, noise) in enumerate(zip(self._parts, noises, strict=True))
            if "wide" not in noise and price * noise["narrow"] > wide * part.cost
        ]
        if sum(self._parts[index].cost for index in telling) <= _LITTLE:
            return
        if not self._is_wide_known:
            self._is_wide_known = True
            if not self._wide_is_enough():
                self._wide_is_enough = None
                return
        units = [frozenset(self._parts[index].units) for index in telling]
        margins = self._margins([Choice(some, self._every - some) for some in units])
        for index, margin in zip(telling, margins, strict=True):
            self._parts[index] = self._parts[index].with_noise("wide", noise_of(margin))

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


def noise_of(margin_db: float) -> float:
    """Return the noise of a margin; 1 is what just is usable."""
    return (
        float(10 ** (-min(max(margin_db, -60.0), 120.0) / 10)) if not math.isnan(margin_db) else 1e6
    )


def _split(items: Sequence[int], parts: int) -> list[list[int]]:
    """Return runs of nearly equal length."""
    return [list(items[a:b]) for a, b in itertools.pairwise(even_bounds(len(items), parts))]


def runs_of(region: Region) -> list[list[int]]:
    """Return the units of a region as runs of neighbours."""
    runs: list[list[int]] = []
    for index in sorted(region):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs
