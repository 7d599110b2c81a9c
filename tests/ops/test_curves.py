"""Functions of one number are found, and computed as onnx's reference computes them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from lowbit.ops.curves import find_curves, find_moved_curves

_SWISH = "s = Sigmoid(z) y = Mul(z, s)"


def _graph(body: str, outputs: str = "float[1,8] y") -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[1,8] x) => ({outputs})
        <float c = {{1.5}}> {{ z = Neg(x) {body} }}"""
    )


@pytest.mark.parametrize(
    ("body", "gate"),
    [
        (_SWISH, "s"),
        ("s = HardSigmoid<alpha=0.16666667, beta=0.5>(z) y = Mul(s, z)", "s"),
        ("s = HardSigmoid(z) t = Mul(s, c) y = Mul(z, t)", "t"),
        ("s = Tanh(z) t = Mul(c, s) y = Abs(t)", None),
    ],
)
def test_a_curve_is_what_the_graph_computes(body: str, gate: str | None) -> None:
    model = _graph(body)
    x = np.linspace(-9, 9, 8, dtype=np.float32)[None]
    (expected,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})

    curve = find_curves(model.graph)["z"]

    found = curve.apply(-x.astype(np.float64))
    assert (None if curve.gate is None else curve.gate.name) == gate
    np.testing.assert_allclose(np.abs(found) if gate is None else found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("s = Sigmoid(z) t = Mul(z, s) y = Add(t, z)", "float[1,8] y"),
        ("s = Sigmoid(z) t = Mul(z, s) y = Add(t, s)", "float[1,8] y"),
        (_SWISH, "float[1,8] y, float[1,8] z"),
        (_SWISH, "float[1,8] y, float[1,8] s"),
        ("y = Sigmoid(z)", "float[1,8] y"),
    ],
)
def test_what_is_read_elsewhere_too_has_no_curve(body: str, outputs: str) -> None:
    assert not find_curves(_graph(body, outputs).graph)


def test_what_is_only_moved_to_a_function_has_its_curve() -> None:
    model = _graph(
        "a = Abs(x) b = Flatten(a) f = Flatten(z) j = Concat<axis = 1>(f, b) y = Sigmoid(j)"
    )

    found = find_moved_curves(model.graph)

    assert found.keys() == {"a", "b", "z", "f", "j"}
    np.testing.assert_allclose(found["z"].apply(np.array([0.0, 2.0])), [0.5, 1 / (1 + np.exp(-2))])
    assert all(curve.gate is None for curve in found.values())


@pytest.mark.parametrize(
    "body",
    [
        "f = Flatten(z) s = Sigmoid(f) y = Add(s, f)",  # read elsewhere too
        "a = Relu(z) y = Sigmoid(a)",  # computed, not moved
        "y = Flatten(z)",
    ],
)
def test_what_is_more_than_moved_has_none(body: str) -> None:
    assert "z" not in find_moved_curves(_graph(body).graph)
