from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph import io
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
