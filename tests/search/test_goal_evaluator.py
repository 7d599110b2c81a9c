"""How candidates are measured: on their own samples, with ever smaller chances to be wrong."""

from __future__ import annotations

import pytest
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized

from lowbit.config.presets import find_preset
from lowbit.data import open_data
from lowbit.data.split import split_for_goal
from lowbit.errors import ConfigError
from lowbit.graph.session import model_inputs
from lowbit.search.goal import Goal
from lowbit.search.goal_evaluator import GoalEvaluator

_FEEDS = small_feeds(24, 8)


@pytest.fixture(scope="module")
def state():
    return quantized(small_cnn(8), find_preset("A8W8"), _FEEDS[:4])


def _evaluator(state, goal: str, labels=None) -> GoalEvaluator:
    samples = split_for_goal(open_data(_FEEDS, model_inputs(state.loaded)), 8, 4)
    return GoalEvaluator(Goal(goal), state, samples, labels)


def test_all_looks_together_may_be_wrong_as_often_as_the_goal_says(state) -> None:
    evaluator = _evaluator(state, "sqnr>=20")
    tails = []
    for _ in range(3):
        tails.append(evaluator.tail)
        evaluator.confirmed(state)

    assert tails == sorted(tails, reverse=True)
    # The sum of 6 / (pi n)^2 over all n is one.
    assert sum(0.05 * 6 / (3.141592653589793 * n) ** 2 for n in range(1, 100_000)) < 0.05
    assert tails[0] == pytest.approx(0.05 * 6 / 3.141592653589793**2)


def test_the_search_and_the_confirmation_see_different_samples(state) -> None:
    evaluator = _evaluator(state, "sqnr>=20")

    searched, confirmed = evaluator.searched(state), evaluator.confirmed(state)

    assert (searched.samples, confirmed.samples) == (5, 11)
    assert searched.figure.value != confirmed.figure.value


@pytest.mark.parametrize("goal", ["sqnr>=20", "kl<=0.01", "cosine>=0.9", "agreement>=0.5"])
def test_margins_are_counted_from_the_limit(state, goal) -> None:
    found = _evaluator(state, goal).searched(state)

    assert Goal(goal).condition.holds(found.figure.value) == (found.margin_db >= 0)
    assert Goal(goal).is_met_by(found.figure) == (found.missing_db <= 0)


def test_few_hits_cannot_tell_a_small_drop(state) -> None:
    found = _evaluator(state, "drop<=0.5", [0] * 24).confirmed(state)

    # A hit lost and a hit won are added to what was seen.
    assert found.noticeable > 5
    assert found.float_score == 0.0
    assert [row.name for row in found.accuracy] == ["top1"]


def test_a_figure_that_no_output_has_is_refused(state) -> None:
    with pytest.raises(ConfigError, match="the model has top1"):
        _evaluator(state, "top5_drop<=1", [0] * 24).searched(state)
