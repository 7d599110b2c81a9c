from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from helpers.odd_models import odd_model
from onnx.reference import ReferenceEvaluator

from lowbit.graph import io
from lowbit.graph.naming import (
    absorb,
    answer_to,
    is_well_named,
    name_everything,
    names_of,
    tensor_name,
    without_overloads,
)
from lowbit.normalize.normalize import normalize


def node(name: str, output: str) -> ir.Node:
    made = ir.node("Relu", [ir.val("x")], name=name)
    made.outputs[0].name = output
    return made


def test_a_node_answers_to_its_name_and_its_outputs() -> None:
    assert names_of(node("conv", "y")) == ("conv", "y")


def test_a_survivor_answers_to_what_it_absorbed() -> None:
    first, second, third = node("conv", "c"), node("bn", "b"), node("relu", "r")
    absorb(second, third)

    absorb(first, second)

    assert set(names_of(first)) == {"conv", "c", "bn", "b", "relu", "r"}


def test_a_renamed_survivor_keeps_its_first_name() -> None:
    first = node("conv", "c")
    absorb(first, node("bn", "b"))

    first.name = "other"

    assert "conv" in names_of(first)


def test_empty_names_are_no_names() -> None:
    made = node("conv", "c")

    answer_to(made, "", None, "also", "also")

    assert names_of(made) == ("conv", "also", "c")


def test_names_outlast_a_copy() -> None:
    made = node("conv", "c")
    answer_to(made, "also")
    graph = ir.Graph(list(made.inputs), made.outputs, nodes=[made], opset_imports={"": 17})

    assert "also" in names_of(ir.Model(graph, ir_version=8).clone().graph[0])


def test_a_value_without_name_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="named values"):
        tensor_name(ir.Value())


def test_unnamed_nodes_are_named_after_what_they_write(parse) -> None:
    original = parse("g (float[4] x) => (float[4] y) { h = Relu(x) y = Neg(h) }")

    assert [node.name for node in normalize(io.load(original)).graph] == ["h", "y"]


def test_a_given_name_wins_over_a_made_up_one(parse) -> None:
    original = parse("g (float[4] x) => (float[4] y) { h = Relu(x) [h] y = Neg(h) }")

    relu, neg = normalize(io.load(original)).graph

    assert neg.name == "h"
    assert relu.name == "h_1"


def test_nodes_of_one_name_all_answer_to_it(parse) -> None:
    original = parse(
        "g (float[4] x) => (float[4] y) { [n] h = Relu(x) [n] i = Neg(h) [n_1] y = Abs(i) }"
    )

    nodes = list(normalize(io.load(original)).graph)

    assert [node.name for node in nodes] == ["n", "n_2", "n_1"]
    assert ["n" in names_of(node) for node in nodes] == [True, True, False]


def test_the_names_outlast_a_conversion_of_the_operator_set(parse) -> None:
    original = parse(
        "g (float[4] x) => (float[4] y) { [n] h = Relu(x) [n] y = Neg(h) }", opset=9, ir_version=4
    )

    nodes = list(normalize(io.load(original)).graph)

    assert all("n" in names_of(node) for node in nodes)
    assert len({node.name for node in nodes}) == 2


def test_branches_that_use_the_same_names_get_their_own(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[4] x, bool p) => (float[4] y) {
          y = If(p) <
            then_branch = t () => (float[4] a) { [n] h = Relu(x) a = Neg(h) },
            else_branch = e () => (float[4] a) { [n] h = Neg(x) a = Abs(h) }
          >
        }"""
    )

    normal = normalize(io.load(original))

    names = [value.name for node in normal.graph.all_nodes() for value in node.outputs]
    assert len(names) == len(set(names))
    for branch in (True, False):
        assert_same(original, normal, {"x": floats(4), "p": np.array(branch)})


def test_values_and_nodes_made_without_names_get_some() -> None:
    x = ir.val("x", ir.DataType.FLOAT, [4])
    relu = ir.Node("", "Relu", [x])
    neg = ir.Node("", "Neg", relu.outputs)
    neg.outputs[0].name, neg.outputs[0].type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x], neg.outputs, nodes=[relu, neg], opset_imports={"": 17})
    for node in graph:
        node.name = None
    relu.outputs[0].name = None

    model = ir.Model(graph, ir_version=8)

    name_everything(model)

    assert [node.name for node in graph] == ["Relu_output", "y"]
    assert relu.outputs[0].name == "Relu_output"


def test_an_output_without_a_name_on_purpose_stays_so(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[1,2,4] x) => (float[1,2,4] y, float[1,2,4] s) {
          y, mean, deviation, s = com.microsoft.SkipLayerNormalization(x, x, gamma)
        }""",
        {"gamma": floats(4)},
    )
    original.graph.node[0].output[1] = original.graph.node[0].output[2] = ""

    normal = normalize(io.load(original))

    assert [value.name for value in normal.graph[0].outputs] == ["y", "", "", "s"]
    assert_same(original, normal, {"x": floats(1, 2, 4)})


def test_thousands_of_nodes_of_one_name_are_told_apart(parse, floats, assert_same) -> None:
    original = parse(
        "g (float[4] x) => (float[4] t2000) {\n"
        + "\n".join(f"[same] t{i} = Neg({'x' if i == 1 else f't{i - 1}'})" for i in range(1, 2001))
        + "}"
    )

    normal = normalize(io.load(original))

    assert len({node.name for node in normal.graph}) == 2000
    assert_same(original, normal, {"x": floats(4)})


def test_an_input_without_a_name_gets_one() -> None:
    x = ir.Value(type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Neg", [x], name="neg")
    node.outputs[0].name = "value"
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 17})
    x.name = None

    name_everything(ir.Model(graph, ir_version=8))

    assert (x.name, node.outputs[0].name) == ("value_1", "value")


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("", "b"), ("a", "b")])
def test_names_are_well_if_naming_changes_nothing(first, second) -> None:
    relu = node(first, "h")
    neg = ir.node("Neg", [relu.outputs[0]], name=second)
    neg.outputs[0].name = "y"
    graph = ir.Graph(list(relu.inputs), neg.outputs, nodes=[relu, neg], opset_imports={"": 17})

    assert is_well_named(graph) == (first == "a" and second == "b")

    name_everything(ir.Model(graph, ir_version=8))
    assert is_well_named(graph)


def test_functions_of_one_name_get_names_of_their_own() -> None:
    proto, (feed, *_) = odd_model("functions of one name")
    model = io.load(proto)

    single = without_overloads(model)

    assert {key[1:] for key in single.functions} == {
        ("block__one", ""), ("block__two", ""), ("inner", ""),
    }  # fmt: skip
    assert ("own", "block", "one") in model.functions
    w, v = (model.graph.initializers[n].const_value.numpy() for n in "wv")
    (z,) = ReferenceEvaluator(io.to_proto(single)).run(None, feed)
    np.testing.assert_allclose(z, np.tanh(np.maximum(feed["x"], 0) @ w) @ v, rtol=1e-4, atol=1e-5)
    assert without_overloads(single) is single
