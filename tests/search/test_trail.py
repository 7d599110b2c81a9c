"""Trials of a search leave rows, the best is marked, and time and enough end it."""

from __future__ import annotations

import pytest

from lowbit import parallel
from lowbit.search.trail import Budget, Rating, Row, Trail


def _rate(value: float | None) -> Rating:
    return Rating(value, 0.0 if value is None else value, "" if value is not None else "refused")


def _square(number: int) -> float | None:
    return None if number == 2 else float((number - 3) ** 2)


def _outcomes(trail: Trail) -> list[str]:
    return [row.outcome for row in trail.rows]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_for_each_trial_with_the_best_so_far_kept(threads) -> None:
    told: list[int] = []
    trail = Trail(tell=told.append)

    found = trail.run("grid", _square, range(6), _rate, threads=threads)

    assert found == [9.0, 4.0, None, 0.0, 1.0, 4.0]
    assert _outcomes(trail) == ["kept", "kept", "skipped", "kept", "dropped", "dropped"]
    assert [row.value for row in trail.rows] == found
    assert trail.rows[2].note == "refused"
    assert (trail.end, told) == ("", [1, 2, 3, 4, 5, 6])


def test_enough_ends_it() -> None:
    trail = Trail()

    found = trail.run("grid", _square, range(6), _rate, is_enough=lambda f: f[-1] == 4.0)

    assert found == [9.0, 4.0]
    assert (_outcomes(trail), trail.end) == (["kept", "met"], "met")


def test_no_time_ends_it_after_one() -> None:
    trail = Trail(Budget(0.0))

    assert trail.run("grid", _square, range(6), _rate) == [9.0]
    assert (trail.end, trail.ran_out) == ("budget", True)
    assert not trail.has_time("grid", "another")
    assert trail.rows[-1].note == "the budget is spent"


def test_what_takes_too_long_is_not_begun() -> None:
    trail = Trail(Budget(60.0))

    assert trail.has_time("s", "short", 1.0)
    assert not trail.has_time("s", "long", 600.0)
    assert "would take about 600 s" in trail.rows[0].note
    assert (trail.end, trail.ran_out) == ("", True)


def test_workers_leave_the_same_rows() -> None:
    trails = [Trail(), Trail()]
    trails[0].run("grid", _square, range(6), _rate)
    with parallel.engine("threading", 2):
        trails[1].run("grid", _square, range(6), _rate)

    rows = [[(r.what, r.value, r.outcome) for r in trail.rows] for trail in trails]
    assert rows[0] == rows[1]


def test_rows_of_other_searches_come_in_between() -> None:
    trail = Trail()
    trail.record(Row("preset", "A8W8", 0.0, 20.0, -1.0, "kept"))
    trail.run("grid", _square, [1], _rate)

    assert [row.strategy for row in trail.rows] == ["preset", "grid"]
