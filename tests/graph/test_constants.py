from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph.editing import (
    add_constant,
    constant,
    constant_shape,
    free_name,
    is_constant,
    scalar,
)


@pytest.fixture
def graph(parse, floats) -> ir.Graph:
    proto = parse(
        "g (float[2,3] x, float[3] d) => (float[2,3] y) { h = Mul(x, w) y = Add(h, d) }",
        {"w": np.float32([[2.5]]), "d": floats(3)},
    )
    return ir.from_proto(proto).graph


def test_only_an_initializer_that_cannot_be_fed_is_constant(graph) -> None:
    w, d = graph.initializers["w"], graph.initializers["d"]

    assert [is_constant(v) for v in (w, d, graph.inputs[0], None)] == [True, False, False, False]
    assert constant(w).tolist() == [[2.5]]
    assert constant(d) is None
    assert constant(None) is None
    assert (constant_shape(w), constant_shape(d), constant_shape(None)) == ((1, 1), None, None)


def test_a_scalar_is_a_constant_of_one_element(graph) -> None:
    vector = add_constant(graph, "v", np.float32([1, 2]))

    assert scalar(graph.initializers["w"]) == 2.5
    assert scalar(vector) is None
    assert scalar(None) is None


def test_a_taken_name_gets_a_number(graph) -> None:
    add_constant(graph, "w", np.float32([1]))

    assert free_name(graph, "w") == "w_2"
    assert free_name(graph, "new") == "new"


def test_a_tensor_is_added_as_it_is(graph) -> None:
    tensor = ir.tensor(np.int8([1]), name="t")

    assert add_constant(graph, "t", tensor).const_value is tensor
