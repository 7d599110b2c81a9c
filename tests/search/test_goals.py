"""The search for a goal from end to end, measured by an onnxruntime of its own."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit import Goal, parallel
from lowbit.data import open_data
from lowbit.data.split import split_for_goal
from lowbit.graph import io
from lowbit.graph.session import model_inputs
from lowbit.search import goal_search

_SIZE = 8
_MODEL = small_cnn(_SIZE)
_FEEDS = small_feeds(60, _SIZE)


def _held_out(limit: int | None = None) -> list[int]:
    data = open_data(_FEEDS, model_inputs(io.load(_MODEL)))
    return sorted(split_for_goal(data, limit, 32).held_out)


def _run(model, feeds) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return np.concatenate([session.run(None, feed)[0] for feed in feeds])


def _sqnr(result) -> float:
    """Return the SQNR on held-out samples; a constant added to all logits changes nothing."""
    feeds = [_FEEDS[index] for index in _held_out()]
    want, got = (_run(model, feeds) for model in (_MODEL, result.model))
    want, got = (x - x.mean(axis=1, keepdims=True) for x in (want, got))
    return float(10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()))


def _labels() -> list[int]:
    return [int(k) for k in _run(_MODEL, _FEEDS).argmax(axis=1)]


@pytest.fixture(scope="module")
def alone():
    return lowbit.quantize(_MODEL, data=_FEEDS, preset="A8W8", goal="sqnr>=20")


def test_a_preset_that_is_good_enough_is_all_there_is(alone) -> None:
    found = alone.report.goal

    assert found.met
    assert [(row.strategy, row.outcome) for row in found.trials] == [("preset", "met")]
    assert found.value == pytest.approx(_sqnr(alone), abs=1e-3)
    assert found.low < found.value < found.high
    assert found.samples == len(_held_out())


def test_more_is_tried_until_a_goal_holds(alone) -> None:
    wanted = alone.report.goal.value + 1.5

    result = lowbit.quantize(_MODEL, data=_FEEDS, preset="A8W8", goal=f"sqnr>={wanted}")

    found = result.report.goal
    assert found.met
    assert found.low >= wanted
    assert found.value == pytest.approx(_sqnr(result), abs=1e-3)
    assert found.trials[-1].outcome == "met"
    assert found.trials[0].value == alone.report.goal.trials[0].value
    assert {"preset", "calibration"} <= {row.strategy for row in found.trials}


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("worker_processes")
def test_workers_find_the_same_model_by_the_same_trials(monkeypatch) -> None:
    by_workers = []
    real = goal_search.screen_candidates
    monkeypatch.setattr(
        goal_search,
        "screen_candidates",
        lambda s, named, left: by_workers.extend(named) or real(s, named, left),
    )

    def run() -> tuple[bytes, list[tuple[object, ...]]]:
        result = lowbit.quantize(
            _MODEL, data=_FEEDS, preset="A8W8", goal="sqnr>=150", strategies=["calibration"]
        )
        history = [
            (r.strategy, r.what, r.value, r.margin_db, r.outcome) for r in result.report.goal.trials
        ]
        return result.model.SerializeToString(deterministic=True), history

    want = run()
    assert not by_workers
    with parallel.engine("loky", 2):
        assert run() == want
    assert [f"{what}" for what, _ in by_workers] == [
        row[1] for row in want[1][1 : 1 + len(by_workers)]
    ]


def test_a_goal_out_of_reach_gives_the_best_there_is(alone) -> None:
    result = lowbit.quantize(_MODEL, data=_FEEDS, preset="A8W8", goal="sqnr>=150")

    found = result.report.goal
    assert not found.met
    assert "missing to sqnr>=150, after all that can be tried with A8W8" in found.missing
    strategies = [row.strategy for row in found.trials]
    assert list(dict.fromkeys(strategies)) == [
        "preset", "calibration", "accurate", "promotion", "mixed-precision",
    ]  # fmt: skip
    assert _sqnr(result) >= _sqnr(alone)
    # What is ranked higher on the samples of the search is kept.
    ranks = [row.margin_db for row in found.trials if row.outcome == "kept"]
    assert ranks == sorted(ranks)


def test_held_out_samples_have_no_part_in_the_search() -> None:
    held = _held_out()
    other = [
        {"input": feed["input"] * 3 if index in held else feed["input"]}
        for index, feed in enumerate(_FEEDS)
    ]

    options = {"preset": "A8W8", "goal": "sqnr>=150", "strategies": ["calibration"]}
    found, changed = (
        lowbit.quantize(_MODEL, data=data, **options).report.goal for data in (_FEEDS, other)
    )

    assert [(r.what, r.value, r.outcome) for r in found.trials] == [
        (r.what, r.value, r.outcome) for r in changed.trials
    ]
    assert found.value != changed.value


def test_the_time_is_up_after_the_budget(alone) -> None:
    result = lowbit.quantize(_MODEL, data=_FEEDS, preset="A8W8", goal="sqnr>=150", budget=1e-3)

    found = result.report.goal
    assert [row.outcome for row in found.trials] == ["kept", "skipped"]
    assert "when the budget ended" in found.missing
    assert _sqnr(result) == _sqnr(alone)


def test_samples_that_are_too_few_to_tell_are_told() -> None:
    result = lowbit.quantize(
        _MODEL, data=_FEEDS, preset="A8W8", goal="drop<=0.5", labels=_labels(), budget="10m"
    )

    found = result.report.goal
    assert not found.met
    assert "labelled samples more" in found.missing
    assert len(found.trials) == 1
    assert result.report.accuracy[0].float_score == 100


def test_a_drop_that_samples_can_tell_is_confirmed() -> None:
    result = lowbit.quantize(_MODEL, data=_FEEDS, preset="A8W8", goal="drop<=40", labels=_labels())

    feeds = [_FEEDS[index] for index in _held_out()]
    same = _run(_MODEL, feeds).argmax(axis=1) == _run(result.model, feeds).argmax(axis=1)
    assert result.report.goal.met
    assert result.report.goal.value == pytest.approx(100 * (1 - same.mean()))


def test_what_float_does_not_reach_is_not_searched_for() -> None:
    wrong = [(label + 1) % 5 for label in _labels()]

    found = lowbit.quantize(
        _MODEL, data=_FEEDS, preset="A8W8", goal="top1>=90", labels=wrong
    ).report.goal

    assert not found.met
    assert "the float model itself has 0" in found.missing
    assert len(found.trials) == 1


def test_a_metric_of_ones_own_is_a_function() -> None:
    def first(outputs, label) -> float:
        assert label is None
        return float(outputs["logits"].reshape(-1)[0])

    result = lowbit.quantize(
        _MODEL, data=_FEEDS, preset="A8W8", goal=Goal("drop<=0.3", metric=first)
    )

    feeds = [_FEEDS[index] for index in _held_out()]
    gap = (_run(_MODEL, feeds) - _run(result.model, feeds))[:, 0].mean()
    assert result.report.goal.met
    assert result.report.goal.value == pytest.approx(gap, abs=1e-5)
    assert result.report.accuracy[0].name == "first"


def test_weights_of_four_bits_get_layers_of_eight() -> None:
    options = {"data": _FEEDS, "preset": "W4"}
    alone = lowbit.quantize(_MODEL, goal="sqnr>=1", **options)
    wanted = alone.report.goal.value + 2

    result = lowbit.quantize(
        _MODEL, goal=f"sqnr>={wanted}", strategies=["mixed-precision"], **options
    )

    tried = [row for row in result.report.goal.trials if row.strategy == "mixed-precision"]
    assert tried
    assert _sqnr(result) > _sqnr(alone)
