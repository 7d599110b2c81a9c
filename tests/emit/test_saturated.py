"""Clips are left out where saturating quantizers do the same, and only there."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from lowbit.emit.saturated import with_saturated, without_saturated
from lowbit.graph.editing import SATURATED, constant

_SCALE = 0.0123


def _model(low: float, high: float | None, zero: int = 0, *, marked: bool = True) -> ir.Model:
    bounds = {"low": np.float32(low)} | ({} if high is None else {"high": np.float32(high)})
    constants = {**bounds, "s": np.float32(_SCALE), "z": np.int8(zero)}
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"], "mul"),
        helper.make_node("Sub", ["a", "x"], ["b"], "sub"),
        helper.make_node("Clip", ["b", *bounds], ["c"], "clip"),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dq"),
    ]
    graph = helper.make_graph(
        nodes,
        "saturated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    for node in model.graph:
        if node.op_type == "Clip" and marked:
            node.meta[SATURATED] = True
    return model


def _operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def _run(model: ir.Model) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto: onnx.ModelProto = ir.to_proto(model)
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, {"x": x})[0]


@pytest.mark.parametrize(
    ("low", "high", "zero"),
    [
        (-128 * _SCALE, None, 0),
        (-128 * _SCALE, 127 * _SCALE, 0),
        (-128 * _SCALE, 5.0, 0),
        (0.0, None, -128),
        (-100 * _SCALE, 200.0, -28),
    ],
)
def test_a_clip_that_the_integers_imply_is_left_out(
    low: float, high: float | None, zero: int
) -> None:
    model = _model(low, high, zero)

    found = without_saturated(model)

    assert "Clip" not in _operators(found)
    assert "Clip" in _operators(model)
    np.testing.assert_array_equal(_run(found), _run(model))
    (quantizer,) = (node for node in found.graph if node.op_type == "QuantizeLinear")
    assert quantizer.inputs[0].name == "c"
    assert not {"low", "high"} & set(found.graph.initializers)


@pytest.mark.parametrize(
    ("low", "high", "zero"),
    [(-127 * _SCALE, None, 0), (-128 * _SCALE, 126 * _SCALE, 0), (0.0, None, 0)],
)
def test_any_other_stays(low: float, high: float | None, zero: int) -> None:
    assert _operators(without_saturated(_model(low, high, zero))).count("Clip") == 1


def test_clips_of_the_model_itself_stay() -> None:
    model = _model(-128 * _SCALE, None, marked=False)
    assert without_saturated(model) is model


@pytest.mark.parametrize("high", [None, 5.0])
def test_what_was_left_out_can_be_put_back(high: float | None) -> None:
    model = _model(-128 * _SCALE, high)

    found = with_saturated(without_saturated(model))

    (clip,) = (node for node in found.graph if node.op_type == "Clip")
    bounds = [constant(value) for value in clip.inputs[1:]]
    assert bounds[0] == np.float32(-128 * _SCALE)
    assert len([b for b in bounds if b is not None]) == (1 if high is None else 2)
    assert clip.outputs[0].name == "c"
    np.testing.assert_array_equal(_run(found), _run(model))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"nothing": [0.0, null]}', '{"x": [0.0, null]}'])
def test_metadata_of_others_change_nothing(text: str) -> None:
    model = _model(-128 * _SCALE, None)
    model.metadata_props["lowbit.saturated"] = text
    assert _operators(with_saturated(model)) == _operators(model)
