"""LSTMs in integers, against the float operator and against the worst that kernels of 16 bits add up."""

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.specs import Rule

_HIDDEN, _INPUTS, _STEPS = 24, 40, 9
_OPERATOR = "DynamicQuantizeLSTM"


def _lstm(directions: int = 1, **attributes: object) -> onnx.ModelProto:
    random = np.random.default_rng(7)
    gates, axes = 4 * _HIDDEN, (directions, 1, _HIDDEN)
    constants = {
        "w": random.normal(0, 0.2, (directions, gates, _INPUTS)),
        "r": random.normal(0, 0.2, (directions, gates, _HIDDEN)),
        "b": random.normal(0, 0.2, (directions, 2 * gates)),
    }
    way = {1: "forward", 2: "bidirectional"}[directions]
    names = ["x", "w", "r", "b", "", "h0", "c0"]
    node = helper.make_node(
        "LSTM", names, ["y", "h", "c"], "cell", hidden_size=_HIDDEN, direction=way, **attributes
    )
    sizes = {"x": [_STEPS, 1, _INPUTS], "h0": axes, "c0": axes}
    if attributes.get("layout"):
        sizes = {"x": [1, _STEPS, _INPUTS], "h0": (1, directions, _HIDDEN)}
        sizes["c0"] = sizes["h0"]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "h", "c")],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("directions", [1, 2])
def test_an_lstm_is_computed_in_integers_with_its_bias_and_states(directions: int) -> None:
    floats = _lstm(directions)
    random = np.random.default_rng(1)
    feed = {
        value.name: random.normal(
            size=[d.dim_value for d in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in floats.graph.input
    }

    made = lowbit.quantize(floats, preset="DYNAMIC8").model

    assert _operators(made) == [_OPERATOR]
    expected, found = (
        ort.InferenceSession(m.SerializeToString()).run(None, feed) for m in (floats, made)
    )
    for a, b in zip(expected, found, strict=True):
        assert 10 * np.log10(np.square(a).sum() / np.square(a - b).sum()) > 30


def test_no_weights_of_an_lstm_saturate_in_16_bits() -> None:
    made = lowbit.quantize(_lstm(), preset="DYNAMIC8").model

    for name in ("w_quantized", "r_quantized"):
        (stored,) = (t for t in made.graph.initializer if t.name == name)
        codes = numpy_helper.to_array(stored).astype(int)
        assert codes.shape[-1] == 4 * _HIDDEN
        assert np.abs(codes).max() > 64  # more than half of the range
        for sign in (1, -1):
            side = np.maximum(sign * codes, 0)
            assert 255 * (side[:, 0::2] + side[:, 1::2]).max() < 2**15


@pytest.mark.parametrize(
    ("attributes", "changes"),
    [
        ({"layout": 1}, {}),  # onnxruntime has it neither, in float or in integers
        ({}, {"domain": "ai.onnx"}),
        ({}, {"activation": None}),
        ({}, {"rules": (Rule(name="cell", weight=find_preset("W4").weight),)}),
    ],
)
def test_an_lstm_that_the_operator_does_not_compute_reads_dequantized_weights(
    attributes: dict, changes: dict
) -> None:
    config = msgspec.structs.replace(find_preset("DYNAMIC8"), **changes)
    floats = _lstm(**attributes)

    if attributes:
        plan = lowbit.plan(floats, config=config)
        assert not plan.activations()
        return
    made = lowbit.quantize(floats, config=config).model
    assert "LSTM" in _operators(made)
    assert _operators(made).count("DequantizeLinear") >= 2
