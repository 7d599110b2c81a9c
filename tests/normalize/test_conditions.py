"""If nodes of constant conditions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph import io
from lowbit.graph.naming import names_of
from lowbit.normalize.normalize import normalize


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


BRANCHES = """<
    then_branch = t () => (float[2,3] p) { k = Constant<value = float {2.0}>() p = Mul(h, k) },
    else_branch = e () => (float[2,3] q) { q = Neg(h) }>"""
SIZES = "s = Shape(x) n = Gather<axis=0>(s, zero) c = Equal(n, two)"
NUMBERS = {"zero": np.array(0), "two": np.array(2), "three": np.array(3)}


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("c = Constant<value = bool {1}>()", ["Relu", "Mul"]),
        ("c = Constant<value = bool {0}>()", ["Relu", "Neg"]),
        ("c = Less(two, three)", ["Relu", "Mul"]),
        (SIZES, ["Relu", "Mul"]),
        ("s = Size(x) c = Equal(s, three)", ["Relu", "Neg"]),
        (
            "s = Shape<start=1>(x) n = ReduceProd<keepdims=0>(s) c = Equal(n, three)",
            ["Relu", "Mul"],
        ),
    ],
)
def test_the_branch_that_is_taken_stays(
    parse, floats, assert_same, condition: str, left: list[str]
) -> None:
    graph = f"g (float[2,3] x) => (float[2,3] y) {{ h = Relu(x) {condition} y = If(c) {BRANCHES} }}"
    original = parse(graph, NUMBERS)

    normal = normalize(io.load(original))

    assert ops(normal) == left
    assert_same(original, normal, {"x": np.abs(floats(2, 3))})


def test_branches_in_branches_and_names_are_followed(parse, floats, assert_same) -> None:
    inner = BRANCHES.replace("then_branch = t", "then_branch = t2").replace("= e ()", "= e2 ()")
    graph = f"""g (float[2,3] x) => (float[2,3] y) {{
        h = Relu(x) one = Less(two, three) no = Less(three, two)
        y = If(one) <
            then_branch = t () => (float[2,3] i) {{ i = If(no) {inner} }},
            else_branch = e () => (float[2,3] j) {{ j = Exp(h) }}> }}"""
    original = parse(graph, NUMBERS)

    normal = normalize(io.load(original))

    assert ops(normal) == ["Relu", "Neg"]
    assert "y" in names_of(normal.graph[1])
    assert_same(original, normal, {"x": np.abs(floats(2, 3))})


@pytest.mark.parametrize("shape", ["[2,3]", "[n,3]"])
def test_a_condition_on_data_or_on_a_free_size_is_left(parse, floats, run, shape: str) -> None:
    condition = SIZES if "n" in shape else "r = ReduceSum<keepdims=0>(x) c = Greater(r, level)"
    graph = (
        f"g (float{shape} x) => (float{shape} y) {{ h = Relu(x) {condition} y = If(c) {BRANCHES} }}"
    )
    original = parse(graph, NUMBERS | {"level": np.float32(1)})

    normal = normalize(io.load(original))

    assert "If" in ops(normal)
    for sign in (1, -1):
        feed = {"x": floats(2, 3) + np.float32(sign)}
        np.testing.assert_allclose(run(normal, feed)[0], run(original, feed)[0], rtol=1e-6)


def test_a_branch_that_gives_an_outer_value_is_followed(parse, floats, assert_same) -> None:
    graph = """g (float[2,3] x) => (float[2,3] y, float[2,3] z) {
        h = Relu(x) c = Less(two, three)
        y, z = If(c) <
            then_branch = t () => (float[2,3] p, float[2,3] r) { p = Identity(h) r = Neg(h) },
            else_branch = e () => (float[2,3] q, float[2,3] s) { q = Neg(h) s = Identity(x) }> }"""
    original = parse(graph, NUMBERS)

    normal = normalize(io.load(original))

    assert "If" not in ops(normal)
    assert_same(original, normal, {"x": np.abs(floats(2, 3))})


def test_a_range_that_becomes_one_of_a_known_row_still_loads(parse, floats, assert_same) -> None:
    graph = """g (float[3] x) => (float[3] y) {
        c = Less(two, three)
        n = If(c) <
            then_branch = t () => (int64 p) { p = Identity(row) },
            else_branch = e () => (int64 q) { q = Identity(three) }>
        r = Range(zero, n, one) f = Cast<to=1>(r) y = Add(x, f) }"""
    original = parse(graph, NUMBERS | {"row": np.array([3]), "one": np.array(1)})
    for attribute in original.graph.node[1].attribute:
        attribute.g.output[0].ClearField("type")

    normal = normalize(io.load(original))

    assert "If" not in ops(normal)
    assert_same(original, normal, {"x": floats(3)})
