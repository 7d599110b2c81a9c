"""Format boundaries, on graphs of a few nodes whose formats are given by hand."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from lowbit import IntegerFormat, IntegerSpec
from lowbit.config.mixed_precision import LayerOption
from lowbit.config.specs import Requantization, TensorOverride
from lowbit.graph import io
from lowbit.planning.plan import Plan, TensorPlan
from lowbit.search.boundaries import find_boundaries

INT8 = IntegerSpec(format=IntegerFormat.INT8)
INT16 = IntegerSpec(format=IntegerFormat.INT16)
WIDE = LayerOption(inputs=INT16)

_MODEL = """<ir_version: 8, opset_import: ["": 17]>
  g (float[2,2] x) => (float[2,2] y) {
    a = MatMul(x, x)
    r = Relu(a)
    b = MatMul(r, r)
    y = Add(b, r)
  }"""


def graph() -> ir.Graph:
    model = io.load(onnx.parser.parse_model(_MODEL))
    for node in model.graph:
        node.name = f"{node.outputs[0].name}_node"
    return model.graph


def planned(*names: str) -> Plan:
    """Return a plan of 8-bit activations."""
    rows = tuple(
        TensorPlan(name=name, role="activation", spec=INT8, leader=name, observe=name, why="")
        for name in names
    )
    return Plan(preset="p", target="t", tensors=rows, biases=(), groups=(), float_nodes=())


EVERY = ("x", "a", "r", "b", "y")


def overrides(found) -> dict[str, IntegerSpec]:
    return {row.tensor: row.spec for row in found.tensors}


def test_without_changes_there_is_no_boundary() -> None:
    found = find_boundaries(graph(), planned(*EVERY), ())

    assert (found.tensors, found.requantize) == ((), ())


def test_a_layer_reads_its_own_format_and_others_the_common_one() -> None:
    found = find_boundaries(graph(), planned(*EVERY), [("b_node", WIDE)])

    # r is produced by a layer of the common format, which Add consumes as it is.
    assert overrides(found) == {"r_again_0": INT16, "b": INT16, "b_again_0": INT8}
    assert found.requantize == (
        Requantization(tensor="r", consumers=("b_node",), name="r_again_0"),
        Requantization(tensor="b", consumers=("y_node",), name="b_again_0"),
    )
    assert all(row.optional for row in found.tensors)


def test_what_a_layer_gives_may_have_a_third_format() -> None:
    option = LayerOption(inputs=INT16, outputs=INT8)

    found = find_boundaries(graph(), planned(*EVERY), [("b_node", option)])

    assert overrides(found) == {"r_again_0": INT16}
    assert [row.tensor for row in found.requantize] == ["r"]


def test_an_input_of_the_graph_is_quantized_to_what_reads_it() -> None:
    found = find_boundaries(graph(), planned(*EVERY), [("a_node", WIDE)])

    # Nobody else reads x: it needs no second pair.
    assert overrides(found)["x"] == INT16
    assert [row.tensor for row in found.requantize] == ["a"]


def test_an_activation_that_is_one_with_its_layer_follows_what_reads_it() -> None:
    # Only r is quantized between a and b: Relu is fused into the layer before.
    found = find_boundaries(graph(), planned("r", "b", "y"), [("b_node", WIDE)])

    assert overrides(found) == {"r": INT16, "r_again_0": INT8, "b": INT16, "b_again_0": INT8}
    assert found.requantize[0] == Requantization(
        tensor="r", consumers=("y_node",), name="r_again_0"
    )


def test_an_output_of_the_graph_is_read_in_the_common_format() -> None:
    found = find_boundaries(graph(), planned(*EVERY), [("y_node", WIDE)])

    # The graph's name stays with what leaves it; the layer's own result gets another.
    assert TensorOverride(tensor="y_before", spec=INT16, optional=True) in found.tensors
    assert "y" not in overrides(found)
    assert found.requantize[-1] == Requantization(
        tensor="y", consumers=(), name="y_before", before=True
    )


def test_layers_of_one_format_have_no_boundary_between_them() -> None:
    names = ("a_node", "r_node", "b_node", "y_node")

    found = find_boundaries(graph(), planned(*EVERY), [(name, WIDE) for name in names])

    assert overrides(found) == {"x": INT16, "a": INT16, "r": INT16, "b": INT16, "y_before": INT16}
    assert [row.name for row in found.requantize] == ["y_before"]


def test_each_format_that_reads_a_tensor_has_one_pair() -> None:
    narrow = IntegerSpec(format=IntegerFormat.UINT8)
    changes = [("b_node", WIDE), ("y_node", LayerOption(inputs=narrow, outputs=INT8))]

    found = find_boundaries(graph(), planned(*EVERY), changes)

    pairs = {row.name: row.consumers for row in found.requantize if row.tensor == "r"}
    assert pairs == {"r_again_0": ("b_node",), "r_again_1": ("y_node",)}
    assert (overrides(found)["r_again_0"], overrides(found)["r_again_1"]) == (INT16, narrow)


@pytest.mark.parametrize("name", EVERY)
def test_a_tensor_that_is_not_quantized_has_no_boundary(name) -> None:
    rest = [other for other in EVERY if other != name]

    found = find_boundaries(graph(), planned(*rest), [("b_node", WIDE), ("y_node", WIDE)])

    assert all(row.tensor != name for row in found.requantize)
    assert not any(row.tensor.startswith(name) for row in found.tensors)
