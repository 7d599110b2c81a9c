"""Groups of channels that can only be scaled together, and what keeps them from being scaled."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chains import chain, node

from lowbit.ops.channels import ChannelLayout
from lowbit.transforms.channel_groups import Group, find_groups

_WEIGHTS = {"w1": (6, 3, 1, 1), "w2": (6, 6, 1, 1), "w3": (4, 6, 1, 1)}


def groups(*nodes: onnx.NodeProto, **constants: object) -> dict[str, Group]:
    model = chain(*nodes, **(_WEIGHTS | constants))
    return {group.name: group for group in find_groups(model.graph)}


def _names(layers: list) -> list[str]:
    return [str(layer.node.outputs[0].name) for layer in layers]


def _consumers(group: Group) -> list[str]:
    return _names([consumer.layer for consumer in group.consumers])


def test_channels_go_from_layer_to_layer() -> None:
    found = groups(
        node("Conv", "x w1", "a"), node("Relu", "a", "b"), node("MaxPool", "b", "c", kernel_shape=[2, 2]),
        node("Conv", "c w2", "d"), node("Conv", "d w3", "y"),
    )  # fmt: skip

    assert {
        name: (g.channels, _names(g.producers), _consumers(g)) for name, g in found.items()
    } == {
        "a": (6, ["a"], ["d"]),
        "d": (6, ["d"], ["y"]),
        "y": (4, ["y"], []),
    }
    assert [g.obstacles for g in found.values()] == [[], [], ["an output of the model"]]


def test_sums_tie_the_channels_of_their_layers() -> None:
    found = groups(
        node("Conv", "x w1", "a"), node("Conv", "a w2", "b"), node("Conv", "b v2", "c"),
        node("Add", "a b", "s"), node("Sum", "s c", "t"), node("Conv", "t w3", "y"), v2=(6, 6, 1, 1),
    )  # fmt: skip

    assert set(found) == {"a", "y"}
    assert _names(found["a"].producers) == ["a", "b", "c"]
    assert _consumers(found["a"]) == ["b", "c", "y"]
    assert found["a"].obstacles == []


def test_constants_that_are_added_are_scaled_as_well() -> None:
    found = groups(
        node("Conv", "x w1", "a"), node("Relu", "a", "b"), node("Sub", "offset b", "c"),
        node("Conv", "c w3", "y"), offset=np.arange(6, dtype=np.float32).reshape(6, 1, 1),
    )  # fmt: skip

    (offset,) = found["a"].offsets
    assert (offset.node.op_type, offset.index, offset.axis) == ("Sub", 0, 0)


@pytest.mark.parametrize(
    ("constant", "why"),
    [
        (np.float32(1), "Add of something that cannot be scaled"),
        (np.ones((8, 8), "f"), "Add of something that cannot be scaled"),
        (np.ones((1, 6, 1, 1), "f"), None),
        (np.ones((6, 8, 8), "f"), None),
    ],
    ids=["one number", "an image", "per channel", "per channel and position"],
)
def test_a_constant_must_have_a_number_for_each_channel(
    constant: np.ndarray, why: str | None
) -> None:
    found = groups(
        node("Conv", "x w1", "a"), node("Relu", "a", "r"), node("Add", "r k", "b"),
        node("Conv", "b w3", "y"), k=constant,
    )  # fmt: skip

    assert found["a"].obstacles == ([] if why is None else [why])


def test_a_clip_bounds_the_channels_it_gives() -> None:
    found = groups(
        node("Conv", "x w1", "a"), node("Clip", "a zero six", "b"), node("Conv", "b w3", "y"),
        zero=np.float32(0), six=np.float32(6),
    )  # fmt: skip

    (limit,) = found["a"].limits
    assert (limit.value.name, limit.layout, limit.bound) == ("b", ChannelLayout(1, 4), 6.0)


def test_neighbours_after_a_flatten_are_one_channel() -> None:
    found = groups(
        node("Conv", "x w1", "a"), node("Flatten", "a", "f"), node("Gemm", "f g", "y"), g=(384, 5)
    )

    assert [consumer.repeat for consumer in found["a"].consumers] == [64]


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("Conv", "x w1", "a"), node("Exp", "a", "b"), node("Conv", "b w3", "y")],
         "consumed by Exp"),
        ([node("Conv", "x w1", "a"), node("Conv", "a w2", "b"), node("Conv", "b w2", "c"),
          node("Conv", "c w3", "y")], "b_node shares its weights"),
        ([node("Conv", "x w1", "a"), node("Conv", "a w3", "b"), node("Sigmoid", "a", "c"),
          node("ReduceMax", "c", "d", keepdims=0), node("Add", "b d", "y")], "consumed by Sigmoid"),
        ([node("Conv", "x w8", "a"), node("Transpose", "a", "b", perm=[0, 2, 3, 1]),
          node("Add", "a b", "c"), node("Conv", "c v8", "y")], "Add of different layouts"),
        ([node("Conv", "x w1", "a"), node("Conv", "x v1", "b"), node("Conv", "b a", "y")],
         "consumed by Conv"),
        ([node("Conv", "x w1", "a"), node("Transpose", "a", "b", perm=[0, 2, 1, 3]),
          node("Conv", "b v8", "y")], "y_node does not read it channel by channel"),
        ([node("ReduceMean", "x", "m", axes=[1]), node("Conv", "x w1", "a"), node("Add", "a m", "b"),
          node("Conv", "b w3", "y")], "Add of something that cannot be scaled"),
    ],
    ids=["operator", "shared weights", "another consumer", "layouts", "as weights", "axis", "sum"],
)  # fmt: skip
def test_obstacles_are_said(nodes: list[onnx.NodeProto], why: str) -> None:
    found = groups(*nodes, v1=(6, 3, 1, 1), w8=(8, 3, 1, 1), v8=(4, 8, 1, 1))

    assert found["a"].obstacles[0] == why


def test_channels_that_nothing_reads_are_no_group_to_scale() -> None:
    model = chain(node("Conv", "x w1", "y"), w1=(6, 3, 1, 1))
    other = ir.node("Relu", [model.graph.inputs[0]], name="relu")
    model.graph.append(other)
    model.graph.outputs[0] = other.outputs[0]

    (group,) = find_groups(model.graph)

    assert group.obstacles == ["no layer consumes it"]


def test_sums_of_other_channel_counts_are_said() -> None:
    found = groups(
        node("Conv", "x w1", "a"), node("Conv", "x v1", "b"), node("Add", "a b", "c"),
        node("Conv", "c w3", "y"), v1=(1, 3, 1, 1),
    )  # fmt: skip

    assert found["a"].obstacles == ["added to 1 channels"]


def test_values_read_inside_branches_are_not_scaled() -> None:
    model = chain(
        node("Conv", "x w1", "a"), node("Relu", "a", "b"), node("Conv", "b w3", "y"), **_WEIGHTS
    )
    graph = model.graph
    relu = graph[1]
    inner = ir.node("Identity", [relu.outputs[0]], name="inner")
    inner.outputs[0].name = "inner_out"
    branch = ir.Graph([], inner.outputs, nodes=[inner], name="branch")
    condition = ir.val("c", ir.DataType.BOOL, [])
    graph.inputs.append(condition)
    choice = ir.node("If", [condition], {"then_branch": branch, "else_branch": branch}, name="if")
    graph.append(choice)

    (group, _) = find_groups(graph)

    assert group.obstacles == ["read inside a subgraph"]
