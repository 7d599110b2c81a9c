from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph import io
from lowbit.graph.editing import constant
from lowbit.normalize.normalize import normalize


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    ("weight", "path"),
    [
        ((4, 3), "w = Transpose<perm=[1,0]>(v)"),
        ((12,), "w = Reshape(v, shape)"),
        ((3, 4), "i = Cast<to=6>(v) w = Cast<to=1>(i)"),
        ((3, 4), "w = Mul(v, two)"),
        ((12,), "a = Mul(v, two) b = Reshape(a, shape) c = Neg(b) w = Abs(c)"),
    ],
    ids=["transpose", "reshape", "cast", "arithmetic", "chain"],
)
def test_a_weight_behind_constant_nodes_becomes_a_weight(
    parse, floats, assert_same, weight: tuple[int, ...], path: str
) -> None:
    original = parse(
        f"g (float[2,3] x) => (float[2,4] y) {{ {path} y = MatMul(x, w) }}",
        {"v": floats(*weight), "shape": np.int64([3, 4]), "two": np.float32([2])},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["MatMul"]
    assert constant(normal.graph[0].inputs[1]).shape == (3, 4)
    assert normal.graph[0].inputs[1].name == "w"
    assert_same(original, normal, {"x": floats(2, 3)})


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("value_float=2.5", np.float32(2.5)),
        ("value_floats=[1.0,2.0,3.0,4.0]", np.float32([1, 2, 3, 4])),
        ("value = float[1] {3.0}", np.float32([3])),
    ],
)
def test_constant_nodes_become_constants(
    parse, floats, assert_same, attribute: str, expected: np.ndarray
) -> None:
    original = parse(
        f"g (float[2,4] x) => (float[2,4] y) {{ k = Constant<{attribute}>() y = Mul(x, k) }}"
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Mul"]
    np.testing.assert_array_equal(constant(normal.graph[0].inputs[1]), expected)
    assert_same(original, normal, {"x": floats(2, 4)})


@pytest.mark.parametrize("attribute", ["value_ints=[4,2]", "value = int64[2] {4,2}"])
def test_constant_shapes_become_constants(parse, floats, assert_same, attribute: str) -> None:
    original = parse(
        f"g (float[2,4] x) => (float[4,2] y) {{ s = Constant<{attribute}>() y = Reshape(x, s) }}"
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Reshape"]
    assert_same(original, normal, {"x": floats(2, 4)})


def test_constant_integers_and_strings_become_constants(parse, run) -> None:
    original = parse(
        """g (string[2] x) => (bool[2] y) {
          w = Constant<value_string="a">()
          y = Equal(x, w)
        }""",
        opset=19,
        ir_version=9,
    )
    feed = {"x": np.array(["a", "b"], dtype=object)}

    normal = normalize(io.load(original))

    assert ops(normal) == ["Equal"]
    np.testing.assert_array_equal(run(normal, feed)[0], [True, False])


def test_a_value_used_by_a_branch_is_computed_for_it(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[2,3] x, bool p) => (float[2,4] y) {
          w = Transpose<perm=[1,0]>(v)
          y = If(p) <
            then_branch = t () => (float[2,4] a) { a = MatMul(x, w) },
            else_branch = e () => (float[2,4] b) { n = MatMul(x, w) b = Neg(n) }
          >
        }""",
        {"v": floats(4, 3)},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["If"]
    for branch in (True, False):
        assert_same(original, normal, {"x": floats(2, 3), "p": np.array(branch)})


def test_a_constant_output_keeps_its_node(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[2,3] x) => (float[2,4] y, float[3,4] w) {
          n = Neg(v)
          w = Transpose<perm=[1,0]>(n)
          y = MatMul(x, w)
        }""",
        {"v": floats(4, 3)},
    )

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": floats(2, 3)})


@pytest.mark.parametrize(
    "made",
    ["Expand(one, shape)", "Tile(one, repeats)", "ConstantOfShape(shape)", "RandomNormalLike(one)"],
)
def test_what_grows_or_draws_is_left_to_the_runtime(parse, made: str) -> None:
    original = parse(
        f"g (float[2,4] x) => (float[2,4] y) {{ k = {made} y = Add(x, k) }}",
        {
            "one": np.ones((1, 1), np.float32),
            "shape": np.int64([2, 4]),
            "repeats": np.int64([2, 4]),
        },
    )

    assert len(ops(normalize(io.load(original)))) == 2


def test_sequences_of_constants_stay(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[2] x, int64 i) => (float[2] y) {
          s = SequenceConstruct(v, w)
          e = SequenceAt(s, i)
          y = Add(x, e)
        }""",
        {"v": floats(2), "w": floats(2)},
    )

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": floats(2), "i": np.array(1, np.int64)})


def test_an_operator_is_computed_even_if_its_name_is_anothers(parse, floats, assert_same) -> None:
    """Names decided once which nodes were constant; duplicates confused the two."""
    original = parse(
        """g (float[2,3] x) => (float[2,4] y) {
          [same] w = Transpose<perm=[1,0]>(v)
          [same] m = MatMul(x, w)
          [same] y = Relu(m)
        }""",
        {"v": floats(4, 3)},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["MatMul", "Relu"]
    assert_same(original, normal, {"x": floats(2, 3)})
