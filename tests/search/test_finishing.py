"""A model is refined, signed and verified; one that is not usable is promoted and verified again."""

from __future__ import annotations

import dataclasses
import math
import types
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
from lowbit.search.finishing import Finisher
from lowbit.search.promotion_values import Promoted, Requirement


class _Report(msgspec.Struct, frozen=True):
    """As much of a report as finishing reads and writes."""

    verdict: Any
    promoted: tuple[PromotedRegion, ...] = ()


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

    def __init__(self, made: object = None) -> None:
        self.asked: list[Requirement] = []
        self._made = made

    def __call__(self, _: object, state: Any, *_refined: object) -> _Promotions:
        self._state = state
        return self

    def promote(self, required: Requirement) -> Promoted:
        self.asked.append(required)
        region = PromotedRegion(
            first="conv",
            last="conv",
            nodes=1,
            format="float",
            multiply_adds=0.1,
            elements=0.1,
            why="",
        )
        return Promoted(self._made or self._state, (region,), -10.0, 5.0, 1)

    def margin(self, _: object) -> float:
        return 5.0

    def saved(self, _: Requirement, spare_db: float) -> float:
        return self.saves * spare_db


@pytest.mark.parametrize(("levels", "rounds"), [(("poor", "usable"), 1), (("poor", "poor"), 2)])
def test_promotion_is_repeated_with_a_higher_aim_if_other_samples_are_worse(
    monkeypatch, levels: tuple[str, ...], rounds: int
) -> None:
    promotions, shown = _Promotions(), iter([*levels, "poor"])
    margins = iter([-9.0, -4.0, -2.0])
    monkeypatch.setattr(finishing, "Promoter", promotions)

    def finished(_, state):
        verdict = types.SimpleNamespace(level=(level := next(shown)), margin_db=next(margins))
        verdict.is_usable, verdict.safe_margin_db = level == "usable", verdict.margin_db
        return state, _Report(verdict=verdict), Refinement()

    monkeypatch.setattr(Finisher, "finished", finished)

    _, report, _ = _finisher().promoted(object())

    assert len(promotions.asked) == rounds
    assert report.promoted
    if rounds == 2:
        # The search's samples promised 5 dB inside the usable, others showed 4 dB outside.
        first, second = (required.wanted_db for required in promotions.asked)
        assert second == first + 9.0


@pytest.mark.parametrize(
    ("saves", "second_db", "kept"),
    [(0.0, math.nan, 15.0), (0.02, 2.0, 2.0), (0.02, -1.0, 15.0)],
    ids=["nothing to save", "still usable", "no longer usable"],
)
def test_less_is_promoted_where_refinement_brings_much(
    monkeypatch, saves: float, second_db: float, kept: float
) -> None:
    promotions, margins = _Promotions(), iter([-9.0, 15.0, second_db])
    promotions.saves = saves
    monkeypatch.setattr(finishing, "Promoter", promotions)

    def finished(_, state):
        db = next(margins)
        verdict = types.SimpleNamespace(margin_db=db, safe_margin_db=db, is_usable=db > 0)
        return state, _Report(verdict=verdict), Refinement()

    monkeypatch.setattr(Finisher, "finished", finished)

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
        usable = state == "promoted"
        margin_db = 1.0 if usable else -9.0
        verdict = types.SimpleNamespace(
            margin_db=margin_db, safe_margin_db=margin_db, is_usable=usable
        )
        return state, _Report(verdict=verdict), Refinement()

    monkeypatch.setattr(Finisher, "finished", finished)
    steps = (_step(expected_error),)

    state, report, _ = dataclasses.replace(_finisher(), steps=steps).promoted("plain")

    assert (state, seen) == ("promoted", refined)
    assert report.promoted
