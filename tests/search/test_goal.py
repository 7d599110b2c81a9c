"""Goals and budgets as people write them."""

from __future__ import annotations

import pytest

from lowbit.errors import ConfigError
from lowbit.numerics.intervals import Interval
from lowbit.search.goal import Goal, read_budget


def own(*_: object) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("text", "scored", "is_drop"),
    [
        ("drop<=0.5", "top1", True),
        ("top1_drop<0.5", "top1", True),
        ("top5_drop<=1", "top5", True),
        ("top5>=90", "top5", False),
    ],
)
def test_accuracy_is_named_with_and_without_its_drop(text, scored, is_drop) -> None:
    goal = Goal(text)

    assert (goal.scored, goal.is_drop) == (scored, is_drop)
    assert goal.is_of_accuracy
    assert goal.needs_labels


def test_a_metric_of_ones_own_has_its_own_name() -> None:
    assert Goal("drop<=0.5", own).scored == "own"
    assert Goal("own>=0.5", own).scored == "own"
    assert not Goal("own_drop<=0.5", own).needs_labels
    with pytest.raises(ConfigError, match=r"'top1'; expected one of .*own"):
        Goal("top1>=50", own)


@pytest.mark.parametrize("text", ["sqnr>=25", "kl<=0.05", "cosine>0.99", "agreement>=98%"])
def test_figures_of_outputs_need_no_labels(text) -> None:
    assert not Goal(text).is_of_accuracy


def test_shares_may_be_written_in_percent() -> None:
    assert Goal("agreement>=98%").condition.limit == pytest.approx(0.98)
    assert Goal("drop<=0.5%").condition.limit == 0.5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sqnr<=25", "worse model: expected sqnr>=NUMBER"),
        ("drop>=1", "worse model: expected drop<=NUMBER"),
        ("agreement>=98", "at most 1; write agreement>=0.98 or 98%"),
        ("snr>=25", "names 'snr'; expected one of sqnr, kl"),
        ("25 dB", "not of the form"),
    ],
)
def test_what_cannot_be_a_goal_is_refused(text, why) -> None:
    with pytest.raises(ConfigError, match=why):
        Goal(text)


def test_a_goal_is_met_at_the_worse_end_of_an_interval() -> None:
    assert Goal("sqnr>=25").is_met_by(Interval(26, 25.1, 27))
    assert not Goal("sqnr>=25").is_met_by(Interval(26, 24.9, 27))
    assert not Goal("drop<=0.5").is_met_by(Interval(0.1, -0.5, 0.6))


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("20m", 1200), ("1.5h", 5400), ("90", 90), (30, 30)]
)
def test_a_budget_is_a_time(text, seconds) -> None:
    assert read_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "20x", "m", float("inf")])
def test_what_is_no_time_is_refused(text) -> None:
    with pytest.raises(ConfigError, match=r"such as 45s, 20m or 1\.5h"):
        read_budget(text)


def test_confidence_is_a_share() -> None:
    with pytest.raises(ConfigError, match="confidence of 95"):
        Goal("sqnr>=25", confidence=95)
