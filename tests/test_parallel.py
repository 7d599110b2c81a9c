"""Work in threads: in order, bounded, and over at once when nobody waits for the rest."""

from __future__ import annotations

import threading

import pytest

from lowbit import parallel
from lowbit.parallel import cpu_count, ordered_map


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    assert list(ordered_map(lambda x: x * x, range(50), threads)) == [x * x for x in range(50)]


def test_nothing_gives_nothing() -> None:
    assert list(ordered_map(str, [], 3)) == []


def test_a_late_first_result_holds_the_others_back() -> None:
    second_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_is_done.wait(30)
        else:
            second_is_done.set()
        return item

    assert list(ordered_map(work, range(2), 2)) == [0, 1]


def test_as_many_threads_run_at_once_as_asked_for() -> None:
    met = threading.Barrier(3)

    # Each waits for two others: with fewer threads the barrier would break.
    assert list(ordered_map(lambda x: (met.wait(30), x)[1], range(6), 3)) == list(range(6))


@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_items_are_read_than_run_and_one(threads: int) -> None:
    read = 0

    def items():
        nonlocal read
        for item in range(40):
            read += 1
            yield item

    for done, _ in enumerate(ordered_map(lambda x: x, items(), threads), start=1):
        assert read <= done + threads


def test_an_error_comes_at_its_place_and_ends_the_work() -> None:
    started = []

    def work(item: int) -> int:
        started.append(item)
        return 10 // (item - 2)

    results = ordered_map(work, range(100), 1)

    assert (next(results), next(results)) == (-5, -10)
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert max(started) <= 3


def test_an_error_of_the_items_is_not_swallowed() -> None:
    def items():
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(ordered_map(str, items(), 4))


def test_who_stops_early_does_not_wait_for_the_rest() -> None:
    done = []
    results = ordered_map(done.append, iter(range(1000)), 2)

    next(results)
    results.close()

    assert len(done) <= 3
    assert not any(t.name.startswith("ThreadPoolExecutor") for t in threading.enumerate())


def test_without_a_number_there_is_a_thread_for_each_processor(monkeypatch) -> None:
    made = []
    pool = parallel.concurrent.futures.ThreadPoolExecutor

    def remember(threads: int):
        made.append(threads)
        return pool(threads)

    monkeypatch.setattr(parallel.concurrent.futures, "ThreadPoolExecutor", remember)
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: 5)

    assert list(ordered_map(str, range(2))) == ["0", "1"]
    assert made == [5]


def test_an_unknown_number_of_processors_is_one(monkeypatch) -> None:
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: None)

    assert cpu_count() == 1
