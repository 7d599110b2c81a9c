"""The SQNR before a tensor: that of the worst tensor it is computed from, however far back."""

from __future__ import annotations

import math

import onnx.parser

from lowbit.evaluate.upstream import ratios_upstream, wiring
from lowbit.graph import io


def _model(body: str):
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2] x, float[2] mask) => (float[2] y) {{ {body} }}'
    return io.load(onnx.parser.parse_model(text))


def test_what_stands_before_in_the_file_but_not_in_the_graph_does_not_count() -> None:
    model = _model("a = Relu(x) m = Neg(mask) b = Add(a, m) y = Abs(b)")
    ratios = {"a": 30.0, "m": math.inf, "b": 20.0, "y": 25.0}

    found = ratios_upstream(wiring(model.graph), ratios)

    assert found == {"a": math.inf, "m": math.inf, "b": 30.0, "y": 20.0}


def test_tensors_that_were_not_measured_hand_on_what_reached_them() -> None:
    model = _model("a = Relu(x) b = Neg(a) c = Abs(b) y = Add(c, mask)")

    assert ratios_upstream(wiring(model.graph), {"a": 30.0, "y": 25.0}) == {
        "a": math.inf,
        "y": 30.0,
    }


def test_a_tensor_and_its_quantized_value_are_one() -> None:
    model = _model("a = Relu(x) q = Identity(a) b = Neg(q) y = Abs(b)")

    found = ratios_upstream(wiring(model.graph, {"q": "a"}), {"a": 30.0, "b": 20.0})

    assert found == {"a": math.inf, "b": 30.0}


def test_a_model_input_is_computed_from_nothing() -> None:
    assert ratios_upstream(wiring(_model("y = Relu(x)").graph), {"x": 40.0, "y": 35.0}) == {
        "x": math.inf,
        "y": 40.0,
    }
