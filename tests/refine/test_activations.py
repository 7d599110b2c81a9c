"""Activations must be onnxruntime's, and their gradients those of small differences."""

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph.session import session
from lowbit.ops.activations import activation_of

CASES = {
    "Relu": {},
    "Sigmoid": {},
    "Tanh": {},
    "LeakyRelu": {"alpha": 0.2},
    "Gelu": {},
    "Clip": {},
    "PRelu": {},
    "Softmax": {"axis": -1},
}


def _node(op, attributes):
    x = ir.val("x", ir.DataType.FLOAT, (7, 5))
    constants = []
    if op == "Clip":
        constants = [np.float32(-0.5), np.float32(1.25)]
    if op == "PRelu":
        constants = [np.linspace(0.1, 0.9, 5, dtype=np.float32)]
    values = [
        ir.Value(name=f"k{i}", const_value=ir.tensor(c), shape=ir.Shape(np.shape(c)))
        for i, c in enumerate(constants)
    ]
    node = ir.node(op, [x, *values], attributes, name="a")
    node.outputs[0].name = "y"
    graph = ir.Graph(
        [x], [node.outputs[0]], nodes=[node], initializers=values, opset_imports={"": 20}
    )
    return ir.Model(graph, ir_version=9), node


@pytest.mark.parametrize("op", CASES)
def test_forwards_and_backwards(op):
    model, node = _node(op, CASES[op])
    z = np.random.default_rng(0).normal(0, 1.5, (7, 5)).astype(np.float32)
    with session(model) as running:
        (want,) = running.run(["y"], {"x": z})
    activation = activation_of(node, last_axis=True)
    columns = z.T[None]
    y = activation.apply(columns)
    np.testing.assert_allclose(y[0].T, want, rtol=1e-5, atol=1e-6)
    weight = np.random.default_rng(1).standard_normal(columns.shape)
    gradient = activation.back(columns, y, weight.astype(np.float32))
    wide = columns.astype(np.float64)
    for at in [(0, 1, 2), (0, 4, 6), (0, 0, 0)]:
        step = np.zeros_like(wide)
        step[at] = 1e-5
        up, down = activation.apply(wide + step), activation.apply(wide - step)
        slope = float(np.sum(weight * (up - down)) / 2e-5)
        assert gradient[at] == pytest.approx(slope, abs=2e-3)


def test_a_clip_whose_bounds_are_computed_is_no_activation():
    x, low = (ir.val(name, ir.DataType.FLOAT, ()) for name in ("x", "low"))
    assert activation_of(ir.node("Clip", [x, low]), last_axis=False) is None
