"""A search that is killed goes on where it was: the same model by the same history, and nothing twice."""

from __future__ import annotations

import collections
import functools

import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit import Goal
from lowbit.search.goal_evaluator import GoalEvaluator
from lowbit.search.goal_search import GoalSearch
from lowbit.search.kept_trials import KeptTrial, KeptTrials
from lowbit.store import Store

_MODEL, _FEEDS = small_cnn(8), small_feeds(40, 8)
_quantize = functools.partial(
    lowbit.quantize, _MODEL, data=_FEEDS, preset="A8W8", strategies=["calibration", "promotion"]
)


class _Killed(BaseException):
    """Ends a run as nothing in it expects."""


def _found(result) -> tuple[bytes, list[tuple[object, ...]]]:
    rows = result.report.goal.trials
    history = [(r.strategy, r.what, r.value, r.margin_db, r.outcome, r.note) for r in rows]
    return result.model.SerializeToString(deterministic=True), history


@pytest.fixture
def work(monkeypatch) -> collections.Counter[str]:
    """Count what is measured, and what refinement solves."""
    done = collections.Counter[str]()

    def counted(owner, name):
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, **more: (done.update([name]), real(*args, **more))[1]
        )

    for name in ("searched", "confirmed"):
        counted(GoalEvaluator, name)
    counted(GoalSearch, "refined")
    return done


def test_a_killed_search_goes_on_where_it_was(tmp_path, work) -> None:
    want = _found(_quantize(goal="sqnr>=150"))
    whole = work.copy()
    work.clear()

    def kill(stage: str, done: int, _: int | None) -> None:
        if stage == "search" and done == len(want[1]) - 2:
            raise _Killed

    with pytest.raises(_Killed):
        _quantize(goal="sqnr>=150", state_dir=tmp_path, progress=kill)
    again = _found(_quantize(goal="sqnr>=150", state_dir=tmp_path))

    assert again == want
    # The row that was being recorded is finished, so nothing at all is done twice.
    assert work == whole
    work.clear()
    assert _found(_quantize(goal="sqnr>=150", state_dir=tmp_path)) == want
    assert not work


def test_another_goal_shares_layers_and_no_figures(tmp_path, work) -> None:
    _quantize(goal="sqnr>=20", state_dir=tmp_path)
    work.clear()

    found = _quantize(goal="cosine>=0.9", state_dir=tmp_path)

    assert _found(found) == _found(_quantize(goal="cosine>=0.9"))
    assert work["searched"] == 2


def test_what_the_code_of_others_gives_is_not_kept(tmp_path) -> None:
    def metric(*_: object) -> float:
        return 1.0

    result = lowbit.quantize(_MODEL, data=_FEEDS, goal=Goal("metric>=0.5", metric))
    store = Store.open(tmp_path)

    kept = KeptTrials.of(store, result.state, Goal("metric>=0.5", metric), None)

    assert not kept.is_open
    assert KeptTrials.of(store, result.state, Goal("sqnr>=5"), None).is_open


def test_a_trial_depends_on_what_was_kept_before(tmp_path) -> None:
    store = Store.open(tmp_path)
    first, second = KeptTrials(store, "key"), KeptTrials(store, "key")
    first.put(KeptTrial(note="changes nothing"), "calibration", "minmax")

    assert second.get("calibration", "minmax") == KeptTrial(note="changes nothing")
    second.follow("accurate", "more positions")
    assert second.get("calibration", "minmax") is None
