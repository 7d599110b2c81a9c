from __future__ import annotations

import dataclasses

import pytest

from lowbit.scales.parameters import Adjustment, Params


def test_parameters_are_frozen_values() -> None:
    params = Params({}, {})

    with pytest.raises(dataclasses.FrozenInstanceError):
        params.adjustments = ()  # type: ignore[misc]
    assert params.bias_values == {}
    assert Params({}, {}).bias_values is not params.bias_values


def test_an_adjustment_may_have_an_unknown_cost() -> None:
    assert Adjustment("t", 1.0, 2.0, "why").cost_db is None
