from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from lowbit.graph import io
from lowbit.graph.editing import constant
from lowbit.graph.naming import names_of
from lowbit.normalize.normalize import normalize


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("idle", ["Identity", "Dropout"])
@pytest.mark.parametrize(
    ("graph", "left"),
    [
        ("h = Relu(x) i = IDLE(h) y = Neg(i)", ["Relu", "Neg"]),
        ("h = Relu(x) y = IDLE(h)", ["Relu"]),
        ("i = IDLE(x) y = Neg(i)", ["Neg"]),
        ("i = IDLE(x) j = IDLE(i) k = Relu(j) l = IDLE(k) y = IDLE(l)", ["Relu"]),
        ("h = Relu(x) i = Neg(h) z = IDLE(h) y = Sub(i, z)", ["Relu", "Neg", "Sub"]),
    ],
    ids=["between", "writes the output", "reads the input", "chains", "two uses"],
)
def test_what_computes_nothing_is_dropped(
    parse, floats, assert_same, idle: str, graph: str, left: list[str]
) -> None:
    original = parse(f"g (float[4] x) => (float[4] y) {{ {graph.replace('IDLE', idle)} }}")

    normal = normalize(io.load(original))

    assert ops(normal) == left
    assert_same(original, normal, {"x": floats(4)})


@pytest.mark.parametrize("idle", ["Identity", "Dropout"])
def test_an_input_that_is_the_output_needs_a_node(parse, floats, assert_same, idle: str) -> None:
    original = parse(f"g (float[4] x) => (float[4] y) {{ y = {idle}(x) }}")

    normal = normalize(io.load(original))

    assert normal.graph.num_nodes() == 1
    assert_same(original, normal, {"x": floats(4)})


def test_two_outputs_of_one_value_both_stay(parse, floats, assert_same) -> None:
    original = parse("g (float[4] x) => (float[4] y, float[4] z) { y = Relu(x) z = Identity(y) }")

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": np.abs(floats(4))})


def test_two_identities_of_one_value_as_outputs_both_stay(parse, floats, assert_same) -> None:
    original = parse(
        "g (float[4] x) => (float[4] y, float[4] z) { h = Relu(x) y = Identity(h) z = Identity(h) }"
    )

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": np.abs(floats(4))})


def test_a_constant_as_output_stays(parse, floats, assert_same) -> None:
    original = parse(
        "g (float[4] x) => (float[4] y, float[4] z) { y = Relu(x) z = Identity(w) }",
        {"w": floats(4)},
    )

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": floats(4)})


def test_the_producer_still_answers_to_the_tensor_it_wrote(parse) -> None:
    original = parse("g (float[4] x) => (float[4] y) { [relu] h = Relu(x) y = Identity(h) }")

    node = normalize(io.load(original)).graph[0]

    assert set(names_of(node)) == {"relu", "h", "y"}


@pytest.mark.parametrize("training", [True, False])
def test_dropout_stays_only_where_it_trains(parse, *, training: bool) -> None:
    original = parse(
        "g (float[4] x) => (float[4] y) { h = Relu(x) d = Dropout(h, r, t) y = Neg(d) }",
        {"r": np.array(0.5, np.float32), "t": np.array(training)},
    )

    assert ("Dropout" in ops(normalize(io.load(original)))) is training


def test_dropout_whose_mask_is_used_stays(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[4] x) => (float[4] y, bool[4] m) {
          h = Relu(x)
          y, m = Dropout(h)
        }"""
    )

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": np.abs(floats(4))})


def test_duplicates_are_merged_and_both_names_are_known(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[4] x) => (float[4] y) {
          [first] a = Relu(x)
          [second] b = Relu(x)
          [third] c = Mul(a, k)
          [fourth] d = Mul(b, l)
          y = Add(c, d)
        }""",
        {"k": np.float32([2]), "l": np.float32([2])},
    )

    normal = normalize(io.load(original))

    assert ops(normal) == ["Relu", "Mul", "Add"]
    assert {"first", "second", "a", "b"} <= set(names_of(normal.graph[0]))
    assert {"third", "fourth"} <= set(names_of(normal.graph[1]))
    assert_same(original, normal, {"x": np.abs(floats(4))})


@pytest.mark.parametrize(
    "pair",
    [
        ("LeakyRelu<alpha=0.1>(x)", "LeakyRelu<alpha=0.2>(x)"),
        ("Mul(x, k)", "Mul(x, l)"),
        ("Sub(x, k)", "Sub(k, x)"),
        ("RandomUniformLike(x)", "RandomUniformLike(x)"),
        ("Bernoulli(x)", "Bernoulli(x)"),
    ],
)
def test_what_differs_is_not_merged(parse, pair: tuple[str, str]) -> None:
    original = parse(
        f"g (float[4] x) => (float[4] y) {{ a = {pair[0]} b = {pair[1]} y = Add(a, b) }}",
        {"k": np.float32([2]), "l": np.float32([3])},
    )

    assert normalize(io.load(original)).graph.num_nodes() == 3


def test_duplicates_that_are_outputs_stay(parse, floats, assert_same) -> None:
    original = parse("g (float[4] x) => (float[4] y, float[4] z) { y = Relu(x) z = Relu(x) }")

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": np.abs(floats(4))})


def test_duplicates_reading_strings_are_no_problem(parse) -> None:
    original = parse(
        "g (int64[1] i) => (string[1] y) { y = Gather(words, i) }",
        {"words": np.array(["a", "b"], dtype=object)},
    )

    assert ops(normalize(io.load(original))) == ["Gather"]


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
def test_a_weight_after_constant_nodes_becomes_a_weight(
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


def test_hardswish_is_a_gate_and_a_product(parse, floats, run) -> None:
    text = "g (float[64] x) => (float[64] y) {{ {} }}"
    original = parse(text.format("[act] h = HardSwish(x) [neg] y = Neg(h)"))
    x = 3 * floats(64)

    normal = normalize(io.load(original))

    assert [n.op_type for n in normal.graph] == ["HardSigmoid", "Mul", "Neg"]
    assert normal.graph[1].name == "act"
    assert normal.graph[1].outputs[0].name == "h"
    assert all("act" in names_of(n) for n in list(normal.graph)[:2])
    onnx.checker.check_model(ir.to_proto(normal), full_check=True)
    expected = -x * (x / 6 + 0.5).clip(0, 1)
    assert abs(run(normal, {"x": x})[0] - expected).max() < 1e-5


def test_hardswish_may_write_the_output(parse, floats, run) -> None:
    original = parse("g (float[64] x) => (float[64] y) { y = HardSwish(x) }")
    x = 3 * floats(64)

    normal = normalize(io.load(original))

    assert [v.name for v in normal.graph.outputs] == ["y"]
    assert abs(run(normal, {"x": x})[0] - x * (x / 6 + 0.5).clip(0, 1)).max() < 1e-5


def attributes(parse, floats, assert_same, node: str, opset: int = 17) -> dict[str, object]:
    original = parse(
        f"g (float[1,4,9,9] x) => (float[1,c,n,m] y) {{ y = {node} }}",
        {"w": floats(4, 4, 3, 3), "v": floats(4, 1, 3, 3)},
        opset=opset,
        ir_version=8 if opset < 19 else 9,
    )

    normal = normalize(io.load(original))

    assert_same(original, normal, {"x": floats(1, 4, 9, 9)})
    return {a.name: a.value for a in normal.graph[0].attributes.values()}


def test_a_convolution_gets_all_of_them(parse, floats, assert_same) -> None:
    assert attributes(parse, floats, assert_same, "Conv(x, w)") == {
        "kernel_shape": (3, 3),
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads": (0, 0, 0, 0),
        "group": 1,
    }


def test_what_is_given_is_kept(parse, floats, assert_same) -> None:
    given = "Conv<group=4, strides=[2,2], pads=[1,1,0,0], dilations=[2,2]>(x, v)"

    assert attributes(parse, floats, assert_same, given) == {
        "kernel_shape": (3, 3),
        "strides": (2, 2),
        "dilations": (2, 2),
        "pads": (1, 1, 0, 0),
        "group": 4,
    }


def test_a_transposed_convolution_gets_them(parse, floats, assert_same) -> None:
    found = attributes(parse, floats, assert_same, "ConvTranspose<strides=[2,2]>(x, w)")

    assert found["kernel_shape"] == (3, 3)
    assert found["pads"] == (0, 0, 0, 0)


def test_a_fixed_output_shape_decides_the_padding_itself(parse, floats, assert_same) -> None:
    node = "ConvTranspose<strides=[2,2], output_shape=[18,18]>(x, w)"

    assert "pads" not in attributes(parse, floats, assert_same, node)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["Conv{}(x, w)", "MaxPool{}(x)", "AveragePool{}(x)"])
def test_automatic_padding_to_the_same_size_is_left_alone(
    parse, floats, assert_same, mode: str, op: str
) -> None:
    node = op.format(f'<auto_pad="{mode}", kernel_shape=[3,3], strides=[2,2]>')

    found = attributes(parse, floats, assert_same, node)

    assert found["auto_pad"] == mode
    assert "pads" not in found


@pytest.mark.parametrize("op", ["Conv{}(x, w)", "MaxPool{}(x)"])
def test_no_padding_is_written_out(parse, floats, assert_same, op: str) -> None:
    node = op.format('<auto_pad="VALID", kernel_shape=[3,3]>')

    found = attributes(parse, floats, assert_same, node)

    assert "auto_pad" not in found
    assert found["pads"] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("op", "opset", "dilations"),
    [
        ("MaxPool", 17, True),
        ("AveragePool", 17, False),
        ("AveragePool", 19, False),
        ("AveragePool", 22, False),
        ("LpPool", 17, False),
        ("LpPool", 18, True),
    ],
)
def test_pools_get_dilations_where_the_operator_set_has_them(
    parse, floats, assert_same, op: str, opset: int, *, dilations: bool
) -> None:
    found = attributes(parse, floats, assert_same, f"{op}<kernel_shape=[2,3]>(x)", opset)

    assert ("dilations" in found) is dilations
    assert found["strides"] == (1, 1)


@pytest.mark.parametrize(("given", "kept"), [([1, 1], False), ([2, 1], True)])
def test_an_average_pool_keeps_only_dilations_that_say_something(
    parse, floats, assert_same, given: list[int], *, kept: bool
) -> None:
    node = f"AveragePool<kernel_shape=[2,2], dilations={given}>(x)"

    found = attributes(parse, floats, assert_same, node, 19)

    assert ("dilations" in found) is kept


def test_a_weight_of_unknown_shape_is_left_alone(parse, floats, assert_same) -> None:
    original = parse(
        "g (float[1,4,9,9] x, float[a,b,c,d] w) => (float[1,e,n,m] y) { y = Conv(x, w) }"
    )

    normal = normalize(io.load(original))

    assert "kernel_shape" not in normal.graph[0].attributes
    assert_same(original, normal, {"x": floats(1, 4, 9, 9), "w": floats(4, 4, 3, 3)})
