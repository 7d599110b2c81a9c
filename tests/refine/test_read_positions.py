"""Positions that outputs depend on are drawn, and some of all others."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.map_models import map_model
from helpers.staged import quantized

from lowbit.calibrate import gradient_pass
from lowbit.config.presets import find_preset
from lowbit.errors import ModelError
from lowbit.ops.gradients import OutputPart
from lowbit.refine import read_positions
from lowbit.refine.layers import find_layers
from lowbit.refine.read_positions import draw_positions
from lowbit.state import Quantized

_SIZE = 10
_READ = 37
_OUTPUTS = [OutputPart("y")]


def _network() -> onnx.ModelProto:
    """Return a network whose second layer is read at one position, and its first one around that."""
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,2,{_SIZE},{_SIZE}] x) => (float[1,4,{_SIZE},{_SIZE}] y) {{
        a = Conv<pads = [1, 1, 1, 1]>(x, v, u)
        r = Relu(a)
        b = Conv(r, w)
        y = Mul(b, read)
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    read = np.zeros((1, 1, _SIZE, _SIZE), np.float32)
    read.flat[_READ] = 1.0
    constants = {
        "v": rng.normal(0, 1, (3, 2, 3, 3)).astype(np.float32),
        "u": np.full(3, 20, np.float32),  # so that the Relu lets everything through
        "w": rng.normal(0, 1, (4, 3, 1, 1)).astype(np.float32),
        "read": read,
    }
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    return model


def _feeds(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    shape = (1, 2, _SIZE, _SIZE)
    return [{"x": rng.normal(0, 1, shape).astype(np.float32)} for _ in range(count)]


@pytest.fixture(scope="module")
def state() -> Quantized:
    return quantized(_network(), find_preset("A8W8"), _feeds(4))


def _drawn(state: Quantized, feeds: list, wanted: int = 100):
    layers, _ = find_layers(state, ())
    return draw_positions(
        state.adapted, layers, _OUTPUTS, feeds, {layer.node: wanted for layer in layers}
    )


def test_most_positions_are_those_that_outputs_depend_on(state: Quantized) -> None:
    feeds = _feeds(40)

    drawn = _drawn(state, feeds)

    for sample in range(len(feeds)):
        assert len(drawn["node_b", sample]) == 100
    # Four in five are drawn by their sensitivity, and of the others one in a hundred falls there too.
    shares = [np.mean(drawn["node_b", sample] == _READ) for sample in range(len(feeds))]
    assert np.mean(shares) == pytest.approx(0.802, abs=0.02)
    others = np.concatenate([drawn["node_b", sample] for sample in range(len(feeds))])
    assert len(np.unique(others)) == _SIZE * _SIZE


def test_sensitivity_is_the_square_of_the_gradient(state: Quantized) -> None:
    """The first layer is read at the same position, by the second."""
    feeds = _feeds(20)

    drawn = _drawn(state, feeds)

    shares = [np.mean(drawn["node_a", sample] == _READ) for sample in range(len(feeds))]
    assert np.mean(shares) == pytest.approx(0.802, abs=0.02)


def test_without_any_sensitivity_positions_are_drawn_evenly(state: Quantized) -> None:
    nothing = [{"x": np.full((1, 2, _SIZE, _SIZE), np.nan, np.float32)}]

    drawn = _drawn(state, nothing)

    assert np.mean(drawn["node_a", 0] == _READ) < 0.2


def test_positions_are_the_same_every_time(state: Quantized) -> None:
    first, again = _drawn(state, _feeds(2)), _drawn(state, _feeds(2))

    assert first.keys() == again.keys()
    for key, positions in first.items():
        np.testing.assert_array_equal(positions, again[key])
    assert not np.array_equal(first["node_b", 0], first["node_b", 1])


def test_rows_of_a_matrix_are_positions_too() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,8,2] x) => (float[1,8,3] y) { a = MatMul(x, w) y = Mul(a, read) }"""
    model = onnx.parser.parse_model(text)
    read = np.zeros((1, 8, 1), np.float32)
    read[0, 5] = 1.0
    for name, array in {"w": np.float32([[1, 2, 3], [4, 5, 7]]), "read": read}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model.graph.node[0].name = "matrix"
    feeds = [{"x": np.random.default_rng(0).normal(0, 1, (1, 8, 2)).astype(np.float32)}]
    state = quantized(model, find_preset("A8W8"), feeds)

    layers, _ = find_layers(state, ())
    drawn = draw_positions(state.adapted, layers, _OUTPUTS, feeds, {"matrix": 8})

    assert np.mean(drawn["matrix", 0] == 5) > 0.5


def test_very_large_maps_and_no_samples_are_left_alone(state: Quantized, monkeypatch) -> None:
    assert _drawn(state, []) == {}

    monkeypatch.setattr(gradient_pass, "_LARGE", 100)

    assert _drawn(state, _feeds(1)) == {}


def test_samples_of_another_size_than_the_first_are_left_out() -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(0, 1, (1, 3, size, 8)).astype(np.float32)} for size in (8, 6, 8)]
    state = quantized(map_model("height"), find_preset("A8W8"), feeds)

    drawn = _drawn(state, feeds, 5)

    assert {sample for _, sample in drawn} == {0, 2}


def test_a_graph_that_onnxruntime_refuses_draws_nothing(state: Quantized, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ModelError("refused")

    monkeypatch.setattr(read_positions, "session", refuse)

    assert _drawn(state, _feeds(1)) == {}
