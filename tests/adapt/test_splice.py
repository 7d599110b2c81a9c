from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import KEPT, add_constant, append_factor, candidates, replace_node
from lowbit.graph.naming import names_of

TWO = "g (float[4] x) => (float[4] h, float[4] y) { [first] h = Relu(x) [second] y = Neg(h) }"


def test_what_replaces_a_node_takes_its_names(normal, run, floats, assert_sound) -> None:
    before = normal(TWO)
    after = before.clone()
    old = after.graph[0]

    replace_node(after.graph, old, [ir.node("Abs", [old.inputs[0]])])

    assert_sound(before, after)
    assert set(names_of(after.graph[0])) == {"first", "h"}
    x = floats(4)
    np.testing.assert_array_equal(run(after, {"x": x})["y"], -np.abs(x))


def test_several_nodes_replace_one(normal, run, floats) -> None:
    model = normal(TWO)
    old = model.graph[0]
    inner = ir.node("Abs", [old.inputs[0]], name="inner")
    inner.outputs[0].name = "inner"

    replace_node(model.graph, old, [inner, ir.node("Sqrt", inner.outputs)])

    assert [n.op_type for n in model.graph] == ["Abs", "Sqrt", "Neg"]
    assert all("first" in names_of(n) for n in list(model.graph)[:2])
    x = floats(4)
    np.testing.assert_allclose(run(model, {"x": x})["h"], np.sqrt(np.abs(x)), rtol=1e-6)


def test_a_factor_comes_right_behind_its_node(normal, run, floats, assert_sound) -> None:
    before = normal(TWO)
    after = before.clone()

    append_factor(after.graph, after.graph[0], add_constant(after.graph, "k", np.float32(3)))

    assert_sound(before, after)
    assert [n.op_type for n in after.graph] == ["Relu", "Mul", "Neg"]
    x = floats(4)
    outputs = run(after, {"x": x})
    np.testing.assert_allclose(outputs["h"], 3 * np.maximum(x, 0))
    np.testing.assert_allclose(outputs["y"], -3 * np.maximum(x, 0))


def test_kept_nodes_and_other_domains_are_no_candidates(normal) -> None:
    model = normal("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Abs(b) }")
    model.graph[0].meta[KEPT] = True
    model.graph[1].domain = "com.example"

    assert [node.op_type for node in candidates(model.graph)] == ["Abs"]
