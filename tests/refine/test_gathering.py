"""Targets that the float model gathers, against whole outputs."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from helpers.chain_models import chain, smooth
from helpers.matrix_models import matrices, rows
from helpers.staged import quantized

from lowbit.config.presets import find_preset
from lowbit.graph.session import session
from lowbit.refine.gathering import known_sizes, spread_positions, with_gathering
from lowbit.refine.layers import find_layers

_CONFIG = find_preset("A8W8")


def _with_batch(model: onnx.ModelProto, size: int | str) -> onnx.ModelProto:
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    dim.Clear()
    setattr(dim, "dim_value" if isinstance(size, int) else "dim_param", size)
    return model


def _joined(feeds: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


@pytest.mark.parametrize(
    ("model", "feed"),
    [
        (chain(2), smooth(1)[0]),
        (_with_batch(chain(2), "N"), smooth(1)[0]),
        (_with_batch(chain(2), "N"), _joined(smooth(3))),
        (matrices(), rows(1)[0]),
    ],
    ids=["convolutions", "one of a free batch", "a batch of three", "matrices"],
)
def test_what_is_gathered_is_what_the_output_holds(model, feed) -> None:
    state = quantized(model, _CONFIG, [feed])
    layers, _ = find_layers(state, ())
    gathering, found = with_gathering(state.calibrated_model, layers)
    assert found.keys() == {layer.node for layer in layers}
    for layer in layers:
        gathered = found[layer.node]
        shape = gathered.shape(known_sizes(gathering, feed))
        count = layer.geometry.count(shape)
        at = spread_positions(count, 11, 0)
        fed = {**feed, **{other.at: np.zeros(1, np.int64) for other in found.values()}}
        fed[gathered.at] = gathered.fed(at, shape)
        with session(gathering, [layer.output, gathered.values]) as running:
            y, values = running.run([layer.output, gathered.values], fed)
        target = gathered.target(at, shape, values)
        assert shape == y.shape
        assert len(set(at.tolist())) == 11
        np.testing.assert_array_equal(target.targets, layer.geometry.values(y, at))


@pytest.mark.parametrize("count", [1, 2, 7, 49, 144, 12544])
def test_positions_of_all_samples_are_spread_evenly(count: int) -> None:
    wanted = min(count, 16)
    found = [spread_positions(count, 16, sample) for sample in range(2 * count)]

    assert all(len(set(at.tolist())) == wanted for at in found)
    assert set(np.bincount(np.concatenate(found), minlength=count)) == {2 * wanted}
    largest = np.diff(np.sort(found[0]), append=count).max()
    assert largest <= 3 * math.ceil(count / wanted)


def test_outputs_of_unknown_size_are_left_out() -> None:
    model = chain(2)
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].Clear()
    state = quantized(model, _CONFIG, smooth(1))
    layers, _ = find_layers(state, ())
    assert with_gathering(state.calibrated_model, layers)[1] == {}
