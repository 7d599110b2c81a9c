"""What each strategy offers for which configuration."""

from __future__ import annotations

import msgspec
import pytest
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized

from lowbit.config.methods import MinMse
from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError
from lowbit.numerics.formats import IntegerFormat
from lowbit.search.goal_strategies import STRATEGIES, _ranges, _wider, check_strategies


def test_other_ranges_are_those_that_the_preset_does_not_have() -> None:
    config = find_preset("A8W8")
    found = dict(_ranges(config))

    assert config.activation.method == MinMse()
    assert "activations by mse" not in found
    assert {"activations by minmax", "activations by entropy", "weights by output"} <= set(found)
    for changed in found.values():
        assert (changed.activation, changed.weight) != (config.activation, config.weight)
        same = msgspec.structs.replace(changed, activation=config.activation, weight=config.weight)
        assert same == config


def test_floats_have_no_ranges_and_weights_alone_have_their_own() -> None:
    assert list(_ranges(find_preset("BF16"))) == []
    assert {what for what, _ in _ranges(find_preset("W4"))} == {
        "weights by hqq",
        "weights by output",
        "weights by minmax",
    }


@pytest.mark.parametrize(
    ("preset", "inputs", "weight"),
    [
        ("A8W8", IntegerFormat.INT16, None),
        ("U8S8", IntegerFormat.UINT16, None),
        ("W4", None, IntegerFormat.INT8),
    ],
)
def test_layers_get_what_the_target_has_that_is_wider(preset, inputs, weight) -> None:
    option = _wider(quantized(small_cnn(8), find_preset(preset), small_feeds(2, 8)))

    assert option is not None
    assert getattr(option.inputs, "format", None) == inputs
    assert getattr(option.weight, "format", None) == weight


@pytest.mark.parametrize("preset", ["XINT8", "A16W8", "BF16"])
def test_where_nothing_is_wider_nothing_is_mixed(preset) -> None:
    assert _wider(quantized(small_cnn(8), find_preset(preset), small_feeds(2, 8))) is None


def test_strategies_are_known_by_name() -> None:
    check_strategies(tuple(STRATEGIES))
    with pytest.raises(ConfigError, match=r"unknown strategy 'promote'; did you mean 'promotion'"):
        check_strategies(("promote",))
