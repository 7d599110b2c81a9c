"""Selective update: a layer is kept only if the whole model's output comes nearer to float."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from helpers.chain_models import chain, smooth
from helpers.staged import outputs_of, quantized

from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError
from lowbit.graph.session import session
from lowbit.refine.layers import LayerResult, find_layers, float_bias
from lowbit.refine.selection import Selection
from lowbit.state import Quantized

_FEEDS = smooth(4)


@pytest.fixture(scope="module")
def state() -> Quantized:
    config = msgspec.structs.replace(find_preset("A8W8"), equalization=None, head="int8")
    return quantized(chain(2), config, _FEEDS)


def _selection(state: Quantized, done: tuple[LayerResult, ...] = ()) -> Selection:
    layers, _ = find_layers(state, ())
    return Selection.of(state, layers, 0, lambda: _FEEDS, done, "cpu")


def _error(state: Quantized) -> float:
    """Return the mean squared error of the output, by running both models whole."""
    with session(state.calibrated_model) as floats, session(state.emitted.model) as integers:
        pairs = zip(
            outputs_of(floats.run, "r1", _FEEDS),
            outputs_of(integers.run, "r1", _FEEDS),
            strict=True,
        )
        return float(np.mean([np.square(a - b, dtype=np.float64).mean() for a, b in pairs]))


def _result(state: Quantized, index: int, change: int = 0, *, kept: bool = True) -> LayerResult:
    layer = find_layers(state, ())[0][index]
    stored = state.weights.tensors[layer.weight.name]() + np.int8(change)
    return LayerResult(layer.node, stored, float_bias(state, layer), 1.0, 0.5, kept=kept)


def test_it_begins_with_the_error_of_the_quantized_model(state: Quantized) -> None:
    assert _selection(state).error == pytest.approx(_error(state), rel=1e-4)


def test_a_layer_that_makes_the_output_worse_is_turned_back(state: Quantized) -> None:
    selection = _selection(state)
    layer, before = find_layers(state, ())[0][0], selection.error
    worse = _result(state, 0, change=20)

    chosen = selection.choose(layer, worse)

    assert not chosen.kept
    assert (chosen.before, chosen.after) == (1.0, 1.0)
    np.testing.assert_array_equal(chosen.stored, state.weights.tensors["w0"]())
    assert selection.error == before
    assert selection.constants == {}


def test_no_gain_is_no_reason_to_keep_a_layer(state: Quantized) -> None:
    selection = _selection(state)
    layer = find_layers(state, ())[0][0]

    assert not selection.choose(layer, _result(state, 0)).kept


def test_a_layer_that_makes_the_output_better_is_kept_for_the_next(state: Quantized) -> None:
    """A selection that begins with a spoiled first layer sees its repair as a gain."""
    selection = _selection(state, (_result(state, 0, change=20),))
    layers, _ = find_layers(state, ())
    spoiled = selection.error
    assert spoiled > 2 * _error(state)

    chosen = selection.choose(layers[0], _result(state, 0))

    assert chosen.kept
    assert selection.error == pytest.approx(_error(state), rel=1e-4)
    assert set(selection.constants) == {layers[0].weight_name, layers[0].bias_name}
    # What is judged next is judged beside it.
    assert selection.measured({}) == selection.error
    assert not selection.choose(layers[1], _result(state, 1, change=20)).kept
    assert selection.error == pytest.approx(_error(state), rel=1e-4)


def test_a_layer_that_was_not_kept_is_not_measured(state: Quantized) -> None:
    selection = _selection(state)
    rejected = _result(state, 0, change=20, kept=False)

    assert selection.choose(find_layers(state, ())[0][0], rejected) is rejected


def test_an_output_that_is_not_there_is_named(state: Quantized) -> None:
    with pytest.raises(ConfigError, match=r"output_index is 3, but the model has 1 outputs: r1"):
        Selection.of(state, [], 3, lambda: _FEEDS, (), "cpu")
