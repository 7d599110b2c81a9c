"""Trials come in order, and end when enough is found."""

from __future__ import annotations

import threading

import pytest

from lowbit.search.trials import run_trials


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_trials_are_the_last_for_any_number_of_threads(threads) -> None:
    found = run_trials(
        lambda n: n * n, range(20), name="squares", is_enough=lambda f: f[-1] >= 36, threads=threads
    )

    assert found == [0, 1, 4, 9, 16, 25, 36]


def test_no_trial_is_begun_long_after_enough_is_found() -> None:
    begun = []
    lock = threading.Lock()

    def work(number: int) -> int:
        with lock:
            begun.append(number)
        return number

    run_trials(work, range(100), name="x", is_enough=lambda found: len(found) == 3)

    assert len(begun) <= 5


def test_without_time_there_is_one_trial() -> None:
    assert run_trials(str, range(9), name="x", seconds=0.0) == ["0"]
    assert len(run_trials(str, range(9), name="x", seconds=60)) == 9
