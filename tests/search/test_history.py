"""Trials of a search leave rows, the best is marked, and time and enough end it."""

from __future__ import annotations

import pytest

from lowbit import parallel
from lowbit.search.history import Budget, Rating, Row, SearchHistory


def _rate(value: float | None) -> Rating:
    return Rating(value, 0.0 if value is None else value, "" if value is not None else "refused")


def _square(number: int) -> float | None:
    return None if number == 2 else float((number - 3) ** 2)


def _outcomes(history: SearchHistory) -> list[str]:
    return [row.outcome for row in history.rows]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_for_each_trial_with_the_best_so_far_kept(threads) -> None:
    told: list[int] = []
    history = SearchHistory(tell=told.append)

    found = history.run("grid", _square, range(6), _rate, threads=threads)

    assert found == [9.0, 4.0, None, 0.0, 1.0, 4.0]
    assert _outcomes(history) == ["kept", "kept", "skipped", "kept", "dropped", "dropped"]
    assert [row.value for row in history.rows] == found
    assert history.rows[2].note == "refused"
    assert (history.end, told) == ("", [1, 2, 3, 4, 5, 6])


def test_enough_ends_it() -> None:
    history = SearchHistory()

    found = history.run("grid", _square, range(6), _rate, is_enough=lambda f: f[-1] == 4.0)

    assert found == [9.0, 4.0]
    assert (_outcomes(history), history.end) == (["kept", "met"], "met")


def test_no_time_ends_it_after_one() -> None:
    history = SearchHistory(Budget(0.0))

    assert history.run("grid", _square, range(6), _rate) == [9.0]
    assert (history.end, history.ran_out) == ("budget", True)
    assert not history.has_time("grid", "another")
    assert history.rows[-1].note == "the budget is spent"


def test_what_takes_too_long_is_not_begun() -> None:
    history = SearchHistory(Budget(60.0))

    assert history.has_time("s", "short", 1.0)
    assert not history.has_time("s", "long", 600.0)
    assert "would take about 600 s" in history.rows[0].note
    assert (history.end, history.ran_out) == ("", True)


def test_workers_leave_the_same_rows() -> None:
    histories = [SearchHistory(), SearchHistory()]
    histories[0].run("grid", _square, range(6), _rate)
    with parallel.engine("threading", 2):
        histories[1].run("grid", _square, range(6), _rate)

    rows = [[(r.what, r.value, r.outcome) for r in history.rows] for history in histories]
    assert rows[0] == rows[1]


def test_rows_of_other_searches_come_in_between() -> None:
    history = SearchHistory()
    history.record(Row("preset", "A8W8", 0.0, 20.0, -1.0, "kept"))
    history.run("grid", _square, [1], _rate)

    assert [row.strategy for row in history.rows] == ["preset", "grid"]
