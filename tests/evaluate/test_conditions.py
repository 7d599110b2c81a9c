"""Conditions as people write them."""

from __future__ import annotations

import math

import pytest

from lowbit.errors import ConfigError
from lowbit.evaluate.conditions import read_condition


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("top1_drop>1", 1.01, 1.0),
        ("sqnr >= 25", 25.0, 24.9),
        (" kl<=5e-2 ", 0.05, 0.051),
        ("size_ratio<0.3", 0.29, 0.3),
        ("drop<=-0.5", -0.6, -0.4),
    ],
)
def test_a_condition_holds_on_one_side_of_its_limit(text, inside, outside) -> None:
    condition = read_condition(text, "gate", "sqnr<20")

    assert condition.holds(inside)
    assert not condition.holds(outside)
    assert not condition.holds(math.nan)
    assert condition.is_lower_limit == (inside > outside)


def test_a_sign_of_percent_is_told() -> None:
    assert read_condition("agreement>=98%", "goal", "x>=1").percent
    assert not read_condition("agreement>=0.98", "goal", "x>=1").percent


@pytest.mark.parametrize("text", ["", "sqnr", "sqnr=25", ">=25", "sqnr>=2.5.1", "sqnr>=e", "a b>1"])
def test_what_is_no_condition_is_refused_with_an_example(text) -> None:
    with pytest.raises(ConfigError, match=r"goal .* FIGURE>=NUMBER, such as sqnr>=25"):
        read_condition(text, "goal", "sqnr>=25")
