"""What is known of each operator, and what its attributes and constants say."""

from __future__ import annotations

import numpy as np
import onnx.defs
import onnx_ir as ir
import pytest

from lowbit.graph.naming import operator_name
from lowbit.ops.linear import LINEAR
from lowbit.ops.traits import (
    DATA_MOVEMENT,
    OPERATORS,
    Kind,
    OpTraits,
    clip_bounds,
    constant_integers,
    is_data_movement,
    moves_exactly,
    non_negative,
    reduced_axes,
    spatial_size,
    traits_of,
)


def value(*shape: int | str | None) -> ir.Value:
    return ir.val("v", dtype=ir.DataType.FLOAT, shape=ir.Shape(shape))


def number(data: object, dtype: type = np.float32) -> ir.Value:
    """Return a constant, which belongs to a graph as constants do."""
    found = ir.val("k", const_value=ir.tensor(np.asarray(data, dtype), name="k"))
    ir.Graph([], [], nodes=[], initializers=[found])
    return found


def node(op_type: str, *inputs: ir.Value | None, **attributes: object) -> ir.Node:
    return ir.node(op_type, list(inputs), attributes)


def reduction(source: ir.Value, *more: ir.Value, **attributes: object) -> ir.Node:
    return node("ReduceMean", source, *more, **attributes)


@pytest.mark.parametrize("name", [name for name in OPERATORS if "::" not in name])
def test_rows_are_of_operators_that_have_these_inputs(name: str) -> None:
    row = OPERATORS[name]
    schema = onnx.defs.get_schema(name, 21)
    named = {*(row.data or ()), *row.constants, row.weight, row.bias} - {None}

    assert schema.max_input > max(named, default=0)
    assert row.outputs is None or row.outputs <= schema.max_output
    # A bias of ONNX's is called so, or B; a weight W, or what a normalization scales with.
    if row.bias is not None:
        assert schema.inputs[row.bias].name in {"B", "C", "bias"}
    if row.weight is not None:
        assert schema.inputs[row.weight].name in {"W", "B", "scale"}


def test_linear_layers_have_a_weight() -> None:
    assert {name for name in LINEAR if OPERATORS[name].weight == 1} == set(LINEAR)
    assert OPERATORS["MatMul"].bias is None


@pytest.mark.parametrize(
    ("layer", "axis"),
    [
        (node("Conv"), 0),
        (node("ConvTranspose"), 1),
        (node("Gemm"), 1),
        (node("Gemm", transB=1), 0),
        (node("MatMul"), -1),
    ],
)
def test_output_channels_of_weights(layer: ir.Node, axis: int) -> None:
    assert OPERATORS[layer.op_type].channel_axis(layer) == axis


def test_data_movement_is_what_moves_numbers() -> None:
    assert set(DATA_MOVEMENT) == {name for name, row in OPERATORS.items() if row.kind is Kind.MOVES}
    assert {"Reshape", "Transpose", "MaxPool", "Gather"} <= set(DATA_MOVEMENT)
    assert not {"Concat", "Relu", "Add", "AveragePool"} & set(DATA_MOVEMENT)


def test_operators_of_other_domains_have_their_domain_before_their_type() -> None:
    embedding = ir.node("EmbedLayerNormalization", [], domain="com.microsoft")
    relu = ir.node("Relu", [], domain="com.example")

    assert operator_name(node("Relu")) == "Relu"
    assert operator_name(embedding) == "com.microsoft::EmbedLayerNormalization"
    assert traits_of(embedding) is OPERATORS[operator_name(embedding)]
    assert traits_of(node("EmbedLayerNormalization")) is None
    assert traits_of(relu) is None


def test_rows_of_ones_own_go_beside_the_others() -> None:
    move = ir.node("Move", [], domain="my.domain")
    operators = OPERATORS | {"my.domain::Move": OpTraits(kind=Kind.MOVES)}

    assert is_data_movement(move, operators)
    assert not is_data_movement(move)
    assert is_data_movement(node("Reshape"), operators)
    assert not is_data_movement(node("Relu"))


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        OPERATORS["Relu"] = OpTraits()  # type: ignore[index]


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [(1 / 6, 0.5, True), (0.1667, 0.5, True), (0.2, 0.5, False), (1 / 6, 0.4, False)],
)
def test_only_the_gate_of_hard_swish_is_quantized(
    alpha: float, beta: float, *, expected: bool
) -> None:
    gate = node("HardSigmoid", alpha=alpha, beta=beta)

    assert OPERATORS["HardSigmoid"].applies(gate) is expected


@pytest.mark.parametrize(
    ("moving", "expected"),
    [
        (node("Transpose"), True),
        (node("Resize", value(1), mode="nearest"), True),
        (node("Resize", value(1)), True),
        (node("Resize", value(1), mode="linear"), False),
        (node("Pad", value(1), number([0, 1], np.int64)), True),
        (node("Pad", value(1), number([0, 1], np.int64), number(0.0)), True),
        (node("Pad", value(1), number([0, 1], np.int64), number(1.0)), False),
        (node("Pad", value(1), number([0, 1], np.int64), value()), False),
        (node("Pad", value(1), number([0, 1], np.int64), number(1.0), mode="edge"), True),
    ],
)
def test_numbers_are_moved_as_they_are(moving: ir.Node, *, expected: bool) -> None:
    assert moves_exactly(moving) is expected


def test_bounds_of_relu_and_clip() -> None:
    x, low, high = value(1), number(-1.0), number(6.0)

    assert clip_bounds(node("Relu", x)) == (0.0, None)
    assert clip_bounds(node("Clip", x)) == (None, None)
    assert clip_bounds(node("Clip", x, low)) == (-1.0, None)
    assert clip_bounds(node("Clip", x, None, high)) == (None, 6.0)
    assert clip_bounds(node("Clip", x, low, high)) == (-1.0, 6.0)
    assert clip_bounds(node("Clip", x, value(), high)) == (None, 6.0), "the lower one is computed"


def _named(nodes: dict[str, ir.Node]) -> ir.Graph:
    for name, each in nodes.items():
        each.outputs[0].name = name
    return ir.Graph([], [], nodes=list(nodes.values()))


def test_tensors_that_are_kept_at_or_above_zero() -> None:
    x = value(1)
    graph = _named(
        {
            "relu": node("Relu", x),
            "signed": node("Clip", x, number(-1.0), number(6.0)),
            "clip": node("Clip", x, number(0.0), number(6.0)),
            "above": node("Clip", x, number(0.5)),
            "sigmoid": node("Sigmoid", x),
        }
    )

    assert non_negative(graph) == {"relu", "clip", "above"}


def test_what_is_made_of_tensors_at_or_above_zero_is_so_too() -> None:
    x, y = node("Relu", value(1)), node("Relu", value(1))
    a, b, any_value = x.outputs[0], y.outputs[0], value(1)
    graph = _named(
        {
            "x": x,
            "y": y,
            "sum": node("Add", a, b),
            "difference": node("Sub", a, b),
            "signed sum": node("Add", a, any_value),
            "product": node("Mul", a, b),
            "joined": node("Concat", a, b, axis=0),
            "signed join": node("Concat", a, any_value, axis=0),
            "largest": node("MaxPool", a, kernel_shape=[1]),
            "blended": node("Resize", a, None, number([1.0]), mode="linear"),
            "overshot": node("Resize", a, None, number([1.0]), mode="cubic"),
            "filled": node("Pad", a, number([0, 1], np.int64), number(-1.0)),
            "convolved": node("Conv", a, b),
        }
    )

    found = non_negative(graph)
    assert found == {"x", "y", "sum", "product", "joined", "largest", "blended"}


def test_axes_count_from_the_end_too() -> None:
    assert reduced_axes(reduction(value(1, 8, 4, 4), axes=[-1, -2])) == [2, 3]
    assert reduced_axes(reduction(value(1, 8, 4, 4), number([-1, 1], np.int64))) == [1, 3]


def test_a_reduction_over_everything_has_all_axes() -> None:
    assert reduced_axes(reduction(value(1, 8, 4, 4))) == [0, 1, 2, 3]
    assert reduced_axes(reduction(value(1, 8, 4, 4), noop_with_empty_axes=1)) == []
    assert reduced_axes(reduction(value(1, 8), number([], np.int64))) == [0, 1]


def test_axes_that_vary_are_not_known() -> None:
    assert reduced_axes(ir.node("ReduceMean", [value(1, 8, 4), value(1)])) is None
    assert reduced_axes(ir.node("ReduceMean", [ir.val("v")], {"axes": [2]})) is None


def test_sizes_of_images() -> None:
    assert spatial_size(value(1, 3, 8, 9)) == (8, 9)
    assert spatial_size(value("n", "c", 8, 9)) == (8, 9)
    assert spatial_size(value(1, 3, "h", 9)) is None
    assert spatial_size(value(1, 3, 8)) is None
    assert spatial_size(ir.val("v")) is None


def test_constants_as_integers() -> None:
    reshape = node("Reshape", value(6), number([2, 3], np.int64))

    assert constant_integers(reshape, 1) == [2, 3]
    assert constant_integers(reshape, 0) is None, "computed"
    assert constant_integers(reshape, 2) is None, "absent"
