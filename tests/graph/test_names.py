from __future__ import annotations

import onnx_ir as ir
import pytest

from lowbit.graph.naming import absorb, answer_to, names_of, tensor_name


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
