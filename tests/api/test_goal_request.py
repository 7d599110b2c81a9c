"""What cannot be searched for is refused before any work."""

from __future__ import annotations

import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.api.goal_request import goal_request
from lowbit.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"goal": "drop<=1"}, "needs labels: give them"),
        ({"budget": "5m"}, "budget is given, but no goal"),
        ({"labels": "l.csv"}, "labels is given, but no goal"),
        ({"strategies": ["promotion"]}, "strategies is given, but no goal"),
        ({"goal": "sqnr>=20", "strategies": ["prayer"]}, "unknown strategy 'prayer'"),
        ({"goal": "sqnr>=20", "budget": "soon"}, "budget 'soon' is not a time"),
        ({"goal": "sqnr>=20", "limit": 8}, "which leaves 0"),
        ({"goal": "sqnr>=20", "data": "random"}, "cannot be measured on random data"),
        ({"goal": "drop<=1", "labels": [1, 2]}, "2 labels are given for 8 samples"),
        ({"goal": "sqnr>=20", "data": None, "preset": "W8"}, "sqnr>=20 is measured: give samples"),
    ],
)
def test_requests_that_make_no_sense(options, why) -> None:
    given = {"data": small_feeds(8, 8), "preset": "A8W8"} | options

    with pytest.raises((ConfigError, DataError), match=why):
        lowbit.quantize(small_cnn(8), **given)


def test_a_plan_and_a_goal_contradict_each_other() -> None:
    plan = lowbit.plan(small_cnn(8), preset="A8W8")

    with pytest.raises(ConfigError, match="plans anew: give one of the two"):
        goal_request("sqnr>=20", None, None, (), plan)


def test_a_request_has_its_budget_in_seconds() -> None:
    request = goal_request("sqnr>=20", "2m", None, ["accurate"], None)

    assert request is not None
    assert (request.budget, request.strategies) == (120, ("accurate",))
    assert 0 < request.time.left <= 120
    assert goal_request(None, None, None, (), None) is None
