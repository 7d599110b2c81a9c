"""The order of a search: what is kept, what is looked at, and when it ends, with figures by hand."""

from __future__ import annotations

import types
from collections.abc import Sequence

import pytest

from lowbit.errors import PlanError
from lowbit.numerics.intervals import Interval
from lowbit.pipeline.pipeline import Clock, Pipeline, ignore_progress
from lowbit.search.finishing import Finisher
from lowbit.search.goal import Goal
from lowbit.search.goal_evaluator import Measurement
from lowbit.search.goal_search import Candidate, GoalSearch, Request


class _Evaluator:
    """Gives a candidate the SQNR that is written on it, less half a decibel on held-out samples."""

    tail = 0.05

    def __init__(self, goal: str) -> None:
        self.goal = Goal(goal)
        self.looks: list[float] = []

    def searched(self, state) -> Measurement:
        return self._of(state.figure)

    def confirmed(self, state) -> Measurement:
        self.looks.append(state.figure)
        return self._of(state.figure - 0.5)

    def _of(self, value: float) -> Measurement:
        found = Interval(value, value - 1, value + 1)
        limit = self.goal.condition.limit
        return Measurement(found, value - limit, limit - found.low, 10)


def _candidate(figure: float, note: str = "") -> Candidate:
    state = types.SimpleNamespace(figure=figure, config=types.SimpleNamespace(name="P"))
    return Candidate(state, state, note=note)  # type: ignore[arg-type]


def _search(goal: str, first: float, budget: float | None = None):
    evaluator = _Evaluator(goal)
    finisher = Finisher(Pipeline(Clock(ignore_progress)), None, (), resume=False)
    request = Request(Goal(goal), budget=budget)
    search = GoalSearch(request, evaluator, finisher, _candidate(first))  # type: ignore[arg-type]
    return search, evaluator


def _attempts(search: GoalSearch, figures: Sequence[float]) -> None:
    for figure in figures:
        search.attempt("s", str(figure), lambda figure=figure: _candidate(figure))


def _outcomes(search: GoalSearch) -> list[str]:
    return [row.outcome for row in search.outcome()[2].trials]


def test_what_lowers_the_noise_is_kept() -> None:
    search, _ = _search("sqnr>=50", 20)
    _attempts(search, [19, 22, 22.05, 25])

    kept, _, outcome = search.outcome()

    assert _outcomes(search) == ["kept", "dropped", "kept", "dropped", "kept"]
    assert kept.state.figure == 25
    assert not outcome.met


def test_the_first_that_meets_the_goal_ends_it() -> None:
    search, evaluator = _search("sqnr>=25", 20)
    _attempts(search, [27, 30])

    assert search.end == "met"
    assert evaluator.looks == [27]
    assert _outcomes(search) == ["kept", "met"]


def test_held_out_samples_are_looked_at_again_only_if_enough_has_changed() -> None:
    search, evaluator = _search("sqnr>=25", 25)
    # 25 is 24.5 on held-out samples, surely 23.5: 1.5 dB are missing.
    _attempts(search, [25.5, 26.4, 26.5])

    assert evaluator.looks == [25, 26.5]
    assert search.end == "met"


def test_after_a_strategy_the_best_is_looked_at_if_it_has_changed() -> None:
    search, evaluator = _search("sqnr>=25", 25)
    search.look("s")
    _attempts(search, [25.5])
    search.look("s")
    search.look("s")

    assert evaluator.looks == [25, 25.5]
    assert search.end == ""


def test_what_cannot_be_made_is_told_and_the_rest_goes_on() -> None:
    search, _ = _search("sqnr>=50", 20)

    def refuse() -> Candidate:
        raise PlanError("nothing is left")

    search.attempt("s", "broken", refuse)
    search.attempt("s", "nothing", lambda: None)
    _attempts(search, [24])

    trials = search.outcome()[2].trials
    assert [row.outcome for row in trials] == ["kept", "skipped", "skipped", "kept"]
    assert [row.note for row in trials[1:3]] == ["nothing is left", "changes nothing in this model"]


def test_what_would_take_too_long_is_not_begun() -> None:
    search, _ = _search("sqnr>=50", 20, budget=100)
    search.attempt("slow", "x", lambda: _candidate(60), expected=1000)
    _attempts(search, [22])

    kept, _, outcome = search.outcome()

    assert outcome.trials[1].outcome == "skipped"
    assert "would take about 1000 s" in outcome.trials[1].note
    assert kept.state.figure == 22
    assert "when the budget ended" in outcome.missing


def test_no_result_is_worse_than_the_preset_on_held_out_samples(monkeypatch) -> None:
    search, evaluator = _search("sqnr>=50", 20)
    _attempts(search, [30])
    monkeypatch.setattr(
        evaluator, "confirmed", lambda state: evaluator._of({20: 20, 30: 10}[state.figure])
    )

    kept, found, outcome = search.outcome()

    assert kept.state.figure == 20
    assert outcome.value == found.figure.value == 20


@pytest.mark.parametrize(("goal", "word"), [("sqnr>=50", "30 is missing to sqnr>=50")])
def test_what_is_missing_is_counted_from_the_worse_end(goal, word) -> None:
    search, evaluator = _search(goal, 21.5)

    assert word in search.outcome()[2].missing
    assert evaluator.looks == [21.5]
