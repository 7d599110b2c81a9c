"""Models that workers run give the bits that threads of this process give."""

from __future__ import annotations

import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit import parallel
from lowbit.evaluate import runner
from lowbit.evaluate.runner import Run, run_models
from lowbit.graph import io


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """A float model, its quantized one, and that one on some samples alone."""
    plain = io.load(small_cnn())
    made = lowbit.quantize(small_cnn(), data=small_feeds(8), preset="A8W8").quantized
    exact = Run.quantized_model(made)
    some = Run(model=made, names=exact.names, name="some", samples=frozenset((1, 9, 18)))
    return [Run.float_model(plain), exact, some]


def _flat(found) -> list[object]:
    return [
        [None if row is None else {n: a.tobytes() for n, a in row.items()} for row in (feed, *rows)]
        for feed, rows in found
    ]


# loky's own thread may look for an item that was cancelled meanwhile, where a caller stops early.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("worker_processes")
def test_workers_give_the_same_bits_in_order(runs, monkeypatch) -> None:
    feeds = small_feeds(19)
    want = _flat(run_models(runs, feeds))
    sent = []
    real = runner.run_on_workers
    monkeypatch.setattr(
        runner, "run_on_workers", lambda runs, items: sent.append(1) or real(runs, items)
    )
    with parallel.engine("loky", 2):
        monkeypatch.setattr(runner, "cpu_count", lambda: 2)
        assert _flat(run_models(runs, iter(feeds))) == want
        assert not sent  # threads are as many, and have the models open
        monkeypatch.setattr(runner, "cpu_count", lambda: 1)
        assert _flat(run_models(runs, feeds[:8])) == want[:8]
        assert not sent  # too few to be worth it
        assert _flat(run_models(runs, iter(feeds))) == want
        assert sent
        # Who stops early does not wait for the rest.
        found = run_models(runs, iter(feeds))
        assert _flat([next(found)]) == want[:1]
        found.close()
    assert [row[3] is not None for row in want] == [index in (1, 9, 18) for index in range(19)]
