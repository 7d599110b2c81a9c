"""Where channels lie after operators that factors pass through."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize
from lowbit.ops.channels import ChannelLayout, propagate

_IMAGE = ChannelLayout(1, 4)


def value(*shape: int | str) -> ir.Value:
    return ir.val("v", dtype=ir.DataType.FLOAT, shape=ir.Shape(shape))


def reduction(source: ir.Value, **attributes: object) -> ir.Node:
    return ir.node("ReduceMean", [source], attributes)


def test_a_reduction_without_kept_dimensions_moves_the_axis() -> None:
    node = reduction(value(1, 8, 4, 4), axes=[0, 2], keepdims=0)

    assert propagate(node, _IMAGE) == ChannelLayout(0, 2)


def test_flatten_makes_neighbours_one_channel() -> None:
    flatten = ir.node("Flatten", [value(1, 8, 3, 3)])

    assert propagate(flatten, _IMAGE) == ChannelLayout(1, 2, repeat=9)


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
        ir.node("Transpose", [value(1, 8, 3, 3)], domain="custom"),
        ir.node("MaxPool", [value(1, 8, 3, 3)], num_outputs=2),
        ir.node("ReduceMax", [value(1, 8, 3, 3)], {"axes": [1]}),
        ir.node("Exp", [value(1, 8, 3, 3)]),
    ],
    ids=lambda node: node.op_type,
)
def test_channels_are_not_followed_through(node: ir.Node) -> None:
    assert propagate(node, _IMAGE) is None


def test_transpose_permutes() -> None:
    assert propagate(
        ir.node("Transpose", [value(1, 8, 3, 3)], {"perm": [0, 2, 3, 1]}), _IMAGE
    ) == ChannelLayout(3, 4)
    assert propagate(ir.node("Transpose", [value(1, 8, 3, 3)]), _IMAGE) == ChannelLayout(2, 4)


def _model(op_type: str, more: tuple[Any, ...], attributes: dict[str, Any]) -> ir.Model:
    """Return a normalized model of one operator on an image of 2 x 6 x 4 x 5."""
    names = ["x", *(f"k{i}" if k is not None else "" for i, k in enumerate(more))]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], name="node", **attributes)],
        "one",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 6, 4, 5])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.asarray(k), f"k{i}")
            for i, k in enumerate(more)
            if k is not None
        ],
    )
    opset = helper.make_opsetid("", 17)
    # A clone, because only that one knows for certain which of its values are inputs.
    return normalize(
        ir.from_proto(helper.make_model(graph, opset_imports=[opset], ir_version=8))
    ).clone()


_F = np.float32


@pytest.mark.parametrize(
    ("op_type", "more", "attributes", "expected"),
    [
        ("Relu", (), {}, _IMAGE),
        ("LeakyRelu", (), {"alpha": 0.3}, _IMAGE),
        ("PRelu", (_F([[[0.2]]]),), {}, _IMAGE),
        ("Clip", (_F(0),), {}, _IMAGE),
        ("Clip", (), {}, _IMAGE),
        ("Clip", (_F(-1),), {}, None),
        ("Sigmoid", (), {}, None),
        ("MaxPool", (), {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}, _IMAGE),
        ("AveragePool", (), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, _IMAGE),
        ("GlobalAveragePool", (), {}, _IMAGE),
        ("GlobalMaxPool", (), {}, _IMAGE),
        ("ReduceMean", (), {"axes": [2, 3]}, _IMAGE),
        ("ReduceMean", (), {"axes": [2, 3], "keepdims": 0}, ChannelLayout(1, 2)),
        ("ReduceMax", (), {"axes": [0], "keepdims": 0}, ChannelLayout(0, 3)),
        ("ReduceMean", (), {"axes": [1, 2]}, None),
        ("Pad", ([0, 0, 1, 0, 0, 0, 0, 2],), {}, _IMAGE),
        ("Pad", ([0, 0, 1, 0, 0, 0, 0, 2],), {"mode": "reflect"}, _IMAGE),
        ("Pad", ([0, 0, 1, 0, 0, 0, 0, 2], _F(3)), {}, None),
        ("Pad", ([0, 1, 0, 0, 0, 0, 0, 0],), {}, None),
        ("Flatten", (), {}, ChannelLayout(1, 2, repeat=20)),
        ("Reshape", ([2, 120],), {}, ChannelLayout(1, 2, repeat=20)),
        ("Reshape", ([2, 6, 20],), {}, None),
        ("Reshape", ([1, 240],), {}, None),
        ("Transpose", (), {"perm": [0, 2, 3, 1]}, ChannelLayout(3, 4)),
        ("Resize", (None, _F([1, 1, 2, 2])), {"mode": "linear"}, _IMAGE),
        ("Resize", (None, _F([1, 2, 1, 1])), {"mode": "linear"}, None),
    ],
)  # fmt: skip
def test_a_factor_on_a_channel_comes_out_where_the_layout_says(
    op_type: str, more: tuple[Any, ...], attributes: dict[str, Any], expected: ChannelLayout | None
) -> None:
    model = _model(op_type, more, attributes)
    found = propagate(model.graph[0], _IMAGE)
    assert found == expected
    if found is None:
        return
    x = np.random.default_rng(0).normal(size=(2, 6, 4, 5)).astype(np.float32)
    factors = np.linspace(0.5, 3, 6, dtype=np.float32)
    with session(model) as running:
        plain = running.run(["y"], {"x": x})[0]
        scaled = running.run(["y"], {"x": x * factors.reshape(6, 1, 1)})[0]

    assert plain.ndim == found.rank
    along = np.repeat(factors, found.repeat)
    shape = [1] * found.rank
    shape[found.axis] = -1
    np.testing.assert_allclose(scaled, plain * along.reshape(shape), rtol=1e-5, atol=1e-6)


def test_squeeze_moves_the_axis() -> None:
    source = value(1, 1, 8, 1)
    axes = ir.val("axes", const_value=ir.tensor(np.int64([0, -1]), name="axes"))
    squeeze = ir.node("Squeeze", [source, axes])
    ir.Graph([source], squeeze.outputs, nodes=[squeeze], initializers=[axes])

    assert propagate(squeeze, ChannelLayout(2, 4)) == ChannelLayout(1, 2)
    assert propagate(squeeze, ChannelLayout(3, 4)) is None, "its axis is gone"


def test_neighbours_of_one_channel_stay_together() -> None:
    flat = ChannelLayout(1, 2, repeat=9)

    assert propagate(ir.node("Relu", [value(1, 72)]), flat) == flat
    assert propagate(ir.node("Transpose", [value(1, 72)]), flat) == ChannelLayout(0, 2, repeat=9)
