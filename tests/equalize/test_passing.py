"""Where channels lie after operators that factors pass through."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from lowbit.ops.channels import Place, carry
from lowbit.ops.traits import reduced_axes

_IMAGE = Place(1, 4)


def value(*shape: int | str) -> ir.Value:
    return ir.val("v", dtype=ir.DataType.FLOAT, shape=ir.Shape(shape))


def reduction(source: ir.Value, **attributes: object) -> ir.Node:
    return ir.node("ReduceMean", [source], attributes)


def test_a_reduction_without_kept_dimensions_moves_the_axis() -> None:
    node = reduction(value(1, 8, 4, 4), axes=[0, 2], keepdims=0)

    assert carry(node, _IMAGE) == Place(0, 2)


def test_axes_count_from_the_end_too() -> None:
    assert reduced_axes(reduction(value(1, 8, 4, 4), axes=[-1, -2])) == [2, 3]


def test_a_reduction_over_everything_has_all_axes() -> None:
    assert reduced_axes(reduction(value(1, 8, 4, 4))) == [0, 1, 2, 3]
    assert reduced_axes(reduction(value(1, 8, 4, 4), noop_with_empty_axes=1)) == []


def test_axes_that_vary_are_not_known() -> None:
    assert reduced_axes(ir.node("ReduceMean", [value(1, 8, 4), value(1)])) is None
    assert reduced_axes(ir.node("ReduceMean", [ir.val("v")], {"axes": [2]})) is None


def test_flatten_makes_neighbours_one_channel() -> None:
    flatten = ir.node("Flatten", [value(1, 8, 3, 3)])

    assert carry(flatten, _IMAGE) == Place(1, 2, repeat=9)


@pytest.mark.parametrize(
    "node",
    [
        ir.node("Flatten", [value(1, 8, "h", 3)]),
        ir.node("Flatten", [value(1, 8, 3, 3)], {"axis": 2}),
        ir.node("Reshape", [value(1, 8, 3, 3)]),
        ir.node("Squeeze", [value(1, 8, 1, 1)]),
        ir.node(
            "Resize", [value(1, 8, 3, 3)], {"coordinate_transformation_mode": "tf_crop_and_resize"}
        ),
        ir.node("Relu", [value(1, 8, 3, 3)], domain="custom"),
        ir.node("MaxPool", [value(1, 8, 3, 3)], num_outputs=2),
        ir.node("Exp", [value(1, 8, 3, 3)]),
    ],
    ids=lambda node: node.op_type,
)
def test_what_is_not_followed(node: ir.Node) -> None:
    assert carry(node, _IMAGE) is None


def test_transpose_permutes() -> None:
    assert carry(
        ir.node("Transpose", [value(1, 8, 3, 3)], {"perm": [0, 2, 3, 1]}), _IMAGE
    ) == Place(3, 4)
    assert carry(ir.node("Transpose", [value(1, 8, 3, 3)]), _IMAGE) == Place(2, 4)
