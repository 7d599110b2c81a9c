"""A model is refined, signed and verified; one that is not usable is promoted and verified again."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized

from lowbit.config.presets import find_preset
from lowbit.pipeline.pipeline import Clock, Pipeline, ignore_progress
from lowbit.pipeline.stages import Refinement
from lowbit.report.values import PromotedRegion, Step
from lowbit.search import finishing
from lowbit.search.finishing import Attempt, Finisher, next_requirement
from lowbit.search.promotion_values import USABLE, Effort, Promoted, Requirement


class _Report(msgspec.Struct, frozen=True):
    """As much of a report as finishing reads and writes."""

    verdict: Any
    promoted: tuple[PromotedRegion, ...] = ()
    size_before: int = 3_200_000_000


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    """Accept anything as a model with few constants."""
    monkeypatch.setattr(finishing, "can_be_switched", lambda _: True)


def _finisher() -> Finisher:
    return Finisher(Pipeline(Clock(ignore_progress)), None, (), resume=False)


def test_a_model_is_signed_and_checked() -> None:
    state = quantized(small_cnn(), find_preset("A8W8"), small_feeds(8))

    finished, report, _ = _finisher().finished(state)

    assert finished.emitted.model.metadata_props["lowbit.preset"] == "A8W8"
    # Without samples in the state nothing can be measured.
    assert (report.verdict is None) == (state.samples is None)


class _Promotions:
    """Stands in for the search: every round finds a region, and notes what it was asked for."""

    saves = 0.0
    effort = Effort()
    is_always_the_same = False

    def __init__(self, made: object = None) -> None:
        self.asked: list[Requirement] = []
        self._made = made

    def __call__(self, _: object, state: Any, **_more: object) -> _Promotions:
        self._state = state
        return self

    def promote(self, required: Requirement) -> Promoted:
        self.asked.append(required)
        region = PromotedRegion(
            first="conv",
            last="conv",
            nodes=1 if self.is_always_the_same else len(self.asked),
            format="float",
            multiply_adds=0.1,
            elements=0.1,
            why="",
        )
        return Promoted(self._made or self._state, (region,), -10.0, 5.0, 1)

    free_db = 0.0

    def change_for_free(self, _: Requirement) -> Promoted:
        changed = ("t",) if self.free_db else ()
        return Promoted(self._state, (), -10.0, -10.0 + self.free_db, 1, changed)

    def gain(self, _: object) -> float:
        return 0.0

    def saved(self, _: Requirement, spare_db: float) -> float:
        return self.saves * spare_db


def _let_stand_in(monkeypatch, promotions: _Promotions, margins: Iterator[float]) -> None:
    """Replace the search by a made-up one, and give models these margins when they are verified."""

    def finished(_, state):
        return state, _Report(verdict=_verdict(next(margins))), Refinement()

    monkeypatch.setattr(finishing, "Promoter", promotions)
    monkeypatch.setattr(Finisher, "finished", finished)


@pytest.mark.parametrize(
    ("shown", "rounds"),
    [((1.0,), 1), ((-4.0, 1.0), 2), ((-4.0, -2.0, -1.0), 3)],
    ids=["usable", "usable at last", "never usable"],
)
def test_promotion_is_repeated_with_a_higher_aim_if_other_samples_are_worse(
    monkeypatch, shown: tuple[float, ...], rounds: int
) -> None:
    promotions, margins = _Promotions(), iter([-9.0, *shown])
    _let_stand_in(monkeypatch, promotions, margins)

    _, report, _ = _finisher().promoted(object())

    assert len(promotions.asked) == rounds
    assert report.promoted
    assert report.verdict.margin_db == max(shown)
    aims = [required.wanted_db for required in promotions.asked]
    if rounds > 1:
        # The search promised 5 dB inside the usable, others showed 4 dB outside.
        assert aims[1] == pytest.approx(USABLE.wanted_db + 9.0)
    if rounds > 2:
        # 5 dB were asked too little the second time as well: a decibel more at least.
        assert aims[2] == pytest.approx(aims[1] + 1.0)


def _verdict(margin_db: float) -> Any:
    return types.SimpleNamespace(
        margin_db=margin_db, safe_margin_db=margin_db, is_usable=margin_db > 0
    )


def _attempt(wanted_db: float, verified_db: float, *, gain_db: float = 0.0) -> Attempt:
    required = USABLE.lowered(USABLE.wanted_db - wanted_db)
    return Attempt(required, wanted_db - gain_db, gain_db, _verdict(verified_db))


def _saves_much(_: Requirement, spare_db: float) -> float:
    return spare_db


@pytest.mark.parametrize(
    ("free_db", "shown", "asked"),
    [
        (6.0, (1.0,), 0),
        (6.0, (-2.0, 1.0), 1),
        (6.0, (-7.0, 1.0), 1),
        (4.0, (1.0,), 1),
        (0.5, (1.0,), 1),
    ],
    ids=["enough", "better than expected", "worse than expected", "hopeless", "little"],
)
def test_what_costs_nothing_is_refined_before_regions_are_searched(
    monkeypatch, free_db: float, shown: tuple[float, ...], asked: int
) -> None:
    promotions, margins = _Promotions(), iter([-9.0, *shown])
    promotions.free_db = free_db
    _let_stand_in(monkeypatch, promotions, margins)

    _, report, _ = _finisher().promoted(object())

    assert (report.verdict.margin_db, len(promotions.asked)) == (1.0, asked)
    if len(shown) > 1:
        # -4 dB were expected of it; of what refinement brought besides, half is counted on.
        more_db = shown[0] + 4.0
        lowered = USABLE.wanted_db - (more_db / 2 if more_db > 0 else more_db)
        assert promotions.asked[0].wanted_db == pytest.approx(lowered)


@pytest.mark.parametrize("margin", [-3.0, 1.0], ids=["poor", "usable"])
def test_a_model_with_gigabytes_of_constants_is_not_promoted_and_says_so(
    monkeypatch, margin: float
) -> None:
    promotions = _Promotions()
    monkeypatch.setattr(finishing, "Promoter", promotions)
    monkeypatch.setattr(finishing, "can_be_switched", lambda _: False)
    monkeypatch.setattr(
        Finisher,
        "finished",
        lambda _, state: (state, _Report(verdict=_verdict(margin)), Refinement()),
    )

    _, report, refinement = _finisher().promoted(object())

    assert (promotions.asked, report.promoted) == ([], ())
    told = [note for note in refinement.notes if "nothing was promoted: with 3.2 GB" in note]
    assert len(told) == (margin < 0)


def test_a_model_that_is_found_again_is_not_refined_again(monkeypatch) -> None:
    promotions, margins = _Promotions(), iter([-9.0, 15.0])
    promotions.saves, promotions.is_always_the_same = 0.02, True
    _let_stand_in(monkeypatch, promotions, margins)

    _, report, _ = _finisher().promoted(object())

    # A third margin was not asked for.
    assert report.verdict.margin_db == 15.0
    assert len(promotions.asked) > 1


def test_the_search_is_told_what_verification_showed(monkeypatch) -> None:
    promotions, margins, told = _Promotions(), iter([-3.0, 1.0]), []
    monkeypatch.setattr(finishing, "Promoter", lambda *a, **k: told.append(k) or promotions(*a))
    monkeypatch.setattr(
        Finisher,
        "finished",
        lambda _, state: (state, _Report(verdict=_verdict(next(margins))), Refinement()),
    )

    _finisher().promoted(object())

    assert told == [{"verified_db": -3.0}]


def test_changes_that_cost_nothing_were_not_too_little_for_what_was_required() -> None:
    free = Attempt(USABLE, -5.0, 1.0, _verdict(-1.0))
    searched = _attempt(0.7, 9.0)

    found = next_requirement([free, searched], _saves_much)

    # Half way to the -4 dB that were expected of them, not to what they were measured for.
    assert found is not None
    assert found.wanted_db == pytest.approx((0.7 - 4.0) / 2)


def test_what_refinement_was_to_bring_counts_as_promised() -> None:
    found = next_requirement([_attempt(0.7, -2.0, gain_db=3.0)], _saves_much)

    assert found is not None
    assert found.wanted_db == pytest.approx(USABLE.wanted_db + 0.7 + 2.0)


def test_what_was_too_little_once_is_not_tried_again() -> None:
    low, high = _attempt(1.0, -1.0), _attempt(5.0, 9.0)

    found = next_requirement([low, high], _saves_much)
    assert found is not None
    assert found.wanted_db == pytest.approx(3.0)
    assert next_requirement([high, low], _saves_much) is None


@pytest.mark.parametrize(("second_db", "lost"), [(8.0, 0.5), (6.5, 0.75), (0.5, 1.0)])
def test_the_less_was_lost_the_more_is_given_back(second_db: float, lost: float) -> None:
    first, second = _attempt(0.7, 8.0), _attempt(-1.3, second_db)

    found = next_requirement([first, second], _saves_much)

    assert found is not None
    spare = 0.7 / lost * (second_db - USABLE.least_db)
    assert found.wanted_db == pytest.approx(-1.3 - spare)


@pytest.mark.parametrize(
    ("saves", "second_db", "kept"),
    [(0.0, math.nan, 15.0), (0.02, 0.2, 0.2), (0.02, -1.0, 15.0)],
    ids=["nothing to save", "still usable", "no longer usable"],
)
def test_less_is_promoted_where_refinement_brings_much(
    monkeypatch, saves: float, second_db: float, kept: float
) -> None:
    promotions, margins = _Promotions(), iter([-9.0, 15.0, second_db])
    promotions.saves = saves
    _let_stand_in(monkeypatch, promotions, margins)

    _, report, _ = _finisher().promoted(object())

    assert report.verdict.margin_db == kept
    aims = [required.wanted_db for required in promotions.asked]
    # Of what is left beyond the least, seven tenths are believed to be left again; what was to spare
    # before refinement (5 dB instead of what was wanted) is no gain of refinement.
    lower = aims[0] - 0.7 * (15.0 - promotions.asked[0].least_db) + (5.0 - aims[0])
    assert aims == [aims[0], pytest.approx(lower)] if saves else len(aims) == 1


def _step(error: float) -> Step:
    return Step(name="bias correction", before=error, after=2 * error, kept=False)


@pytest.mark.parametrize(
    ("expected_error", "margin", "refined"),
    [
        (0.5, -9.0, ["promoted"]),
        (0.5, -1.0, ["plain", "promoted"]),
        (0.01, -9.0, ["plain", "promoted"]),
    ],
    ids=["hopeless", "nearly usable on samples of the search", "small error expected"],
)
def test_a_hopeless_model_is_promoted_before_it_is_refined(
    monkeypatch, expected_error: float, margin: float, refined: list[str]
) -> None:
    promotions, seen = _Promotions("promoted"), []
    promotions.is_hopeless = lambda by_db: margin < -by_db
    monkeypatch.setattr(finishing, "Promoter", promotions)

    def finished(_, state):
        seen.append(state)
        verdict = _verdict(1.0 if state == "promoted" else -9.0)
        return state, _Report(verdict=verdict), Refinement()

    monkeypatch.setattr(Finisher, "finished", finished)
    steps = (_step(expected_error),)

    state, report, _ = dataclasses.replace(_finisher(), steps=steps).promoted("plain")

    assert (state, seen) == ("promoted", refined)
    assert report.promoted
