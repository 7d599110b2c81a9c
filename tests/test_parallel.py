"""Work in threads and on workers: in order, bounded, tried again where a worker dies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import joblib
import numpy as np
import pytest
from helpers import tasks

from lowbit import parallel
from lowbit.errors import ConfigError, DataError, WorkerError
from lowbit.parallel import cpu_count, distributed_map, engine, ordered_map, run_ahead, worker_count


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


def test_the_next_result_is_made_while_the_caller_has_one() -> None:
    made = [threading.Event() for _ in range(5)]
    read = 0

    def items():
        nonlocal read
        for item in range(5):
            read += 1
            yield item

    def work(item: int) -> int:
        made[item].set()
        return item * item

    for number, result in enumerate(run_ahead(work, items())):
        assert result == number * number
        assert made[min(number + 1, 4)].wait(30)
        assert read <= number + 2


def test_running_ahead_of_nothing_gives_nothing_and_an_error_comes_where_it_was_made() -> None:
    assert list(run_ahead(str, [])) == []
    results = run_ahead(lambda x: 1 // x, [1, 0, 1])

    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


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
    done, before = [], set(threading.enumerate())
    results = ordered_map(done.append, iter(range(1000)), 2)

    next(results)
    results.close()

    assert len(done) <= 3
    assert set(threading.enumerate()) <= before


def test_without_a_number_there_is_a_thread_for_each_processor(monkeypatch) -> None:
    made = []
    pool = parallel.Pool

    def remember(threads: int):
        made.append(threads)
        return pool(threads)

    monkeypatch.setattr(parallel, "Pool", remember)
    monkeypatch.setattr(parallel, "cpu_count", lambda: 5)

    assert list(ordered_map(str, range(2))) == ["0", "1"]
    assert made == [5]


@pytest.mark.parametrize(("items", "threads"), [(1, 4), (0, 4), (3, 1)])
def test_no_thread_is_started_for_what_one_does(items: int, threads: int) -> None:
    used = set(ordered_map(lambda _: threading.get_ident(), range(items), threads))

    assert used <= {threading.get_ident()}


def test_processors_that_the_process_may_not_use_are_not_counted(monkeypatch) -> None:
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)

    assert cpu_count() == 3


@pytest.mark.parametrize(("known", "count"), [(None, 1), (6, 6)])
def test_elsewhere_all_processors_are_counted(monkeypatch, known, count) -> None:
    monkeypatch.delattr(parallel.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: known)

    assert cpu_count() == count


def test_a_worker_has_one_processor() -> None:
    token = parallel._IN_WORKER.set(True)
    try:
        assert cpu_count() == 1
    finally:
        parallel._IN_WORKER.reset(token)


def test_without_an_engine_work_stays_in_this_process() -> None:
    assert worker_count() is None
    found = list(distributed_map(tasks.process, range(4), name="test"))
    assert {process for process, _, _ in found} == {os.getpid()}


@pytest.fixture
def processes(worker_processes):
    """Two processes."""
    del worker_processes
    with engine(workers=2):
        yield


@pytest.mark.xdist_group("workers")
def test_tests_of_a_group_run_in_one_process(request) -> None:
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("no --dist loadgroup")

    # By this ending pytest-xdist knows a group; some versions of pytest do not let it be added.
    assert request.node.nodeid.endswith("@workers")


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("processes")
def test_processes_give_the_results_in_order() -> None:
    assert worker_count() == 2
    assert list(distributed_map(tasks.square, range(9), name="test")) == [x * x for x in range(9)]
    found = list(distributed_map(tasks.process, range(4), name="test"))
    assert os.getpid() not in {process for process, _, _ in found}
    # A worker has one processor, and starts no workers of its own.
    assert {(processors, workers) for _, processors, workers in found} == {(1, None)}


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("processes")
def test_shared_arrays_reach_every_task() -> None:
    numbers = {"numbers": np.arange(300_000, dtype=np.float64)}
    want = float(numbers["numbers"].sum())
    found = list(distributed_map(tasks.total, range(3), name="test", shared=numbers))
    assert found == [want, want + 1, want + 2]


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("processes")
def test_a_worker_that_is_killed_costs_what_it_was_at(tmp_path) -> None:
    task = tasks.Recorded(tmp_path, {5: "kill"})
    assert list(distributed_map(task, range(12), name="test")) == [x * x for x in range(12)]
    # loky ends its other workers as well, so what they were at is run again, and what they had done
    # but not handed over yet.
    assert task.runs(5) == 2
    assert all(task.runs(item) <= 2 for item in range(12))
    assert sum(task.runs(item) for item in range(12)) <= 12 + 8


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("processes")
def test_an_item_that_always_kills_its_worker_is_named(tmp_path) -> None:
    task = tasks.Recorded(tmp_path, {2: "kill"}, always=True)
    with pytest.raises(WorkerError, match="test of 2 failed 3 times; the last time: the worker"):
        list(distributed_map(task, range(6), name="test"))


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("processes")
def test_what_raises_is_tried_again(tmp_path) -> None:
    task = tasks.Recorded(tmp_path, {1: "raise"})
    assert list(distributed_map(task, range(3), name="test")) == [0, 1, 4]
    assert [task.runs(item) for item in range(3)] == [1, 2, 1]
    (tmp_path / "always").mkdir()
    task = tasks.Recorded(tmp_path / "always", {1: "raise"}, always=True)
    with pytest.raises(
        WorkerError, match=r"test of 1 failed 3 times.*OSError: the network is down"
    ):
        list(distributed_map(task, range(3), name="test"))
    assert task.runs(1) == 3


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("processes")
def test_errors_of_this_package_come_as_they_are_and_once(tmp_path) -> None:
    task = tasks.Recorded(tmp_path, {3: "refuse"}, always=True)
    with pytest.raises(DataError, match="sample 3 is broken; repair it"):
        list(distributed_map(task, range(6), name="test"))
    assert task.runs(3) == 1


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("processes")
def test_a_caller_who_stops_early_keeps_the_workers(tmp_path) -> None:
    task = tasks.Recorded(tmp_path, {})
    before = set()
    while len(before) < 2:  # one worker may have done all before the other was there
        before |= {process for process, _, _ in distributed_map(tasks.process, range(20), name="t")}
    for _ in range(3):
        running = distributed_map(task, range(200), name="test")
        assert [next(running) for _ in range(3)] == [0, 1, 4]
        running.close()
    # Of 600 items few were started: those that the workers had been given.
    assert sum(task.runs(item) for item in range(200)) <= 3 * 40
    after = {process for process, _, _ in distributed_map(tasks.process, range(20), name="test")}
    assert after <= before


def test_the_backend_that_the_program_chose_is_used() -> None:
    with joblib.parallel_config(backend="threading", n_jobs=2):
        assert worker_count() is None
    with joblib.parallel_config(backend="loky", n_jobs=3):
        assert worker_count() == 3
    with engine("multiprocessing", 2):
        assert worker_count() == 2
    assert worker_count() is None


@pytest.mark.parametrize(
    ("cluster", "package"), [("dask=tcp://a:1", "distributed"), ("ray=auto", "ray")]
)
def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch, cluster, package) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = cluster.split("=")[0]
    with pytest.raises(ConfigError, match=rf"pip install 'lowbit\[{extra}\]'"), engine(cluster):
        pass


def test_unknown_engines_and_no_workers_are_refused() -> None:
    with (
        pytest.raises(ConfigError, match="'desk' is unknown; did you mean 'dask'"),
        engine("desk=x"),
    ):
        pass
    with pytest.raises(ConfigError, match="workers is 0"), engine(workers=0):
        pass


def test_nothing_imports_an_engine_that_was_not_asked_for() -> None:
    code = "import sys, lowbit, lowbit.api.quantize; print([m for m in sys.modules if m in names])"
    names = "names = {'joblib', 'distributed', 'dask', 'ray', 'fsspec'}; "
    found = subprocess.run([sys.executable, "-c", names + code], capture_output=True, check=True)
    assert found.stdout.decode().strip() == "[]"


def test_dashboards_show_what_a_task_is() -> None:
    from joblib._dask import Batch

    call = parallel._Call(tasks.square, "calibrate", None)

    # Dask's dashboard groups tasks by this word, joblib's own.
    assert "calibrate" in repr(Batch([(call, (0, 1), {})]))


def test_a_pool_that_is_given_is_used_again_and_stays_open() -> None:
    with parallel.Pool(2) as pool:
        seen = set()
        for _ in range(5):
            found = ordered_map(lambda i: seen.add(threading.get_ident()) or i, range(6), 2, pool)
            assert list(found) == list(range(6))
        with pytest.raises(ZeroDivisionError):
            list(ordered_map(lambda i: 1 // (3 - i), range(9), 2, pool))

        assert list(ordered_map(str, range(3), 2, pool)) == ["0", "1", "2"]
    assert len(seen) <= 2
