"""LSTM as AMD's own operator, against what AMD's compiled kernel computed."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from lowbit.emit.bodies import with_bodies
from lowbit.graph import io
from lowbit.quark.errors import CompatibilityWarning, NotSupportedError
from lowbit.quark.models.custom import to_extended_lstm

_STEPS, _INPUTS, _HIDDEN = 6, 4, 3
_Y_SCALE = np.float32(2 / 65535)
# The forward state of the last step, by amd-quark 0.13's compiled operator.
AMD = pathlib.Path(__file__).parent / "data/lstm-0.13.npy"


def _parameters(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = min(array.min(), 0), max(array.max(), 0)
    scale = np.float32((high - low) / 65535)
    return np.asarray(scale), np.asarray(np.rint(-low / scale), np.uint16)


def _arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {
        "X": (_STEPS, 1, _INPUTS),
        "W": (2, 4 * _HIDDEN, _INPUTS),
        "R": (2, 4 * _HIDDEN, _HIDDEN),
        "B": (2, 8 * _HIDDEN),
    }
    return {name: rng.normal(0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}


def lstm_model(outputs: int = 1) -> onnx.ModelProto:
    """Return an LSTM between Q/DQ pairs of uint16."""
    constants, nodes = [], []

    def store(name: str, array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(array, name))
        return name

    def pair(op: str, name: str, scale: str, zero: str, output: str) -> None:
        nodes.append(helper.make_node(op, [name, scale, zero], [output], domain="com.microsoft"))

    for name, array in _arrays().items():
        scale, zero = _parameters(array)
        names = store(f"{name}_s", scale), store(f"{name}_z", zero)
        codes = np.clip(np.rint(array / scale) + zero, 0, 65535).astype(np.uint16)
        if name == "X":
            pair("QuantizeLinear", "X", *names, "X_q")
        else:
            store(f"{name}_q", codes)
        pair("DequantizeLinear", f"{name}_q", *names, f"{name}_d")
    lstm = helper.make_node(
        "LSTM", ["X_d", "W_d", "R_d", "B_d"], ["Y0", "Y_h"][:outputs], name="lstm",
        direction="bidirectional", hidden_size=_HIDDEN,
    )  # fmt: skip
    nodes.append(lstm)
    names = store("Y_s", np.asarray(_Y_SCALE)), store("Y_z", np.asarray(32768, np.uint16))
    pair("QuantizeLinear", "Y0", *names, "Y_q")
    pair("DequantizeLinear", "Y_q", *names, "Y")
    float32 = TensorProto.FLOAT
    made = [helper.make_tensor_value_info("Y", float32, [_STEPS, 2, 1, _HIDDEN])]
    if outputs > 1:
        made.append(helper.make_tensor_value_info("Y_h", float32, [2, 1, _HIDDEN]))
    inputs = [helper.make_tensor_value_info("X", float32, [_STEPS, 1, _INPUTS])]
    graph = helper.make_graph(nodes, "lstm", inputs, made, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _run(model: onnx.ModelProto) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString())
    return session.run(["Y"], {"X": _arrays()["X"]})[0]


def test_it_becomes_amds_operator_with_its_parameters() -> None:
    model = to_extended_lstm(io.load(lstm_model()))

    (node,) = [n for n in model.graph if n.op_type == "ExtendedLSTM"]
    scale, zero = _parameters(_arrays()["W"])
    assert node.domain == "com.amd.quark"
    assert node.attributes.get_float("w_scale") == pytest.approx(float(scale))
    assert node.attributes.get_int("w_zero_point") == int(zero)
    assert node.attributes.get_int("y_zero_point") == 32768


def test_it_computes_what_amds_kernel_does_to_one_step() -> None:
    made = io.to_proto(with_bodies(to_extended_lstm(io.load(lstm_model()))))

    onnx.checker.check_model(made)
    # AMD's kernel also rounds the state that goes from step to step.
    assert np.abs(_run(made) - np.load(AMD)).max() <= 1.01 * _Y_SCALE


def test_what_amds_operator_cannot_stand_for_stays() -> None:
    with pytest.warns(CompatibilityWarning, match="stays as it is: AMD's operator has one output"):
        model = to_extended_lstm(io.load(lstm_model(outputs=2)))

    assert "LSTM" in {node.op_type for node in model.graph}


def test_an_lstm_in_float_is_named_with_the_way_out() -> None:
    model = lstm_model()
    model.graph.node[-3].input[0] = "X"

    with pytest.raises(
        NotSupportedError, match=r"X of LSTM 'lstm' is not quantized.*extra_op_types"
    ):
        to_extended_lstm(io.load(model))
