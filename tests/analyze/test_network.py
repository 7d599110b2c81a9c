"""The network as it is drawn: nodes without Q/DQ, in blocks that never form a cycle."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.small_models import small_cnn, small_feeds
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import lowbit
from lowbit.analyze.network import MOST_NODES, _Folding, draw_network
from lowbit.analyze.quantizers import find_quantizers
from lowbit.report.values import Network, NetworkBlock, NetworkNode


def node(index: int, inputs: tuple[int, ...], name: str | None = None) -> NetworkNode:
    return NetworkNode(
        name=name or f"n{index}",
        op_type="Add",
        tensor=f"t{index}",
        inputs=inputs,
        weights=(),
        format="int8",
        quantized=True,
    )


def fold(nodes: list[NetworkNode]) -> NetworkBlock:
    return _Folding(nodes).block(0, len(nodes))


def leaves(block: NetworkBlock) -> list[tuple[int, int]]:
    if not block.blocks:
        return [(block.start, block.end)]
    return [leaf for inner in block.blocks for leaf in leaves(inner)]


@given(st.integers(0, 3000), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_blocks_are_small_and_hold_every_node_once_in_order(count, seed) -> None:
    rng = np.random.default_rng(seed)
    nodes = [
        node(i, tuple({int(j) for j in rng.integers(max(0, i - 9), i, 2)} if i else ()))
        for i in range(count)
    ]

    found = leaves(fold(nodes))

    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == count
    assert all(end - start <= MOST_NODES for start, end in found)
    if count > MOST_NODES:
        assert len(fold(nodes).blocks) <= 60


def test_residual_blocks_are_kept_whole() -> None:
    # Twenty blocks of nine nodes with a shortcut around each.
    nodes = []
    for block in range(20):
        first = 9 * block
        nodes.append(node(first, (first - 1,) if block else ()))
        nodes += [node(first + i, (first + i - 1,)) for i in range(1, 8)]
        nodes.append(node(first + 8, (first + 7, first)))

    found = fold(nodes)

    # A cut inside a shortcut would be crossed by two tensors, one at its ends by one.
    assert {start % 9 for start, _ in leaves(found)} <= {0, 1}


def test_a_block_is_called_after_what_its_names_share() -> None:
    names = [f"/model/layer.{i // 10}/conv{i % 10}" for i in range(80)]
    nodes = [node(i, (i - 1,) if i else (), name) for i, name in enumerate(names)]

    titles = [block.title for block in fold(nodes).blocks]

    assert titles == [f"model/layer.{i}" for i in range(8)]


def test_a_block_over_several_parts_is_called_after_the_first_and_the_last() -> None:
    names = [f"/model.{i // 3}/conv{i % 3}" for i in range(80)]
    nodes = [node(i, (i - 1,) if i else (), name) for i, name in enumerate(names)]

    blocks = fold(nodes).blocks

    assert [block.title for block in blocks] == [
        f"model.{block.start // 3} to model.{(block.end - 1) // 3}" for block in blocks
    ]


def test_blocks_of_one_name_are_told_apart_by_their_first_node() -> None:
    # As tf2onnx joins the names of what it fused.
    names = [f"net/pitch/conv_{i};net/pitch/reshape_{i}" for i in range(80)]
    nodes = [node(i, (i - 1,) if i else (), name) for i, name in enumerate(names)]

    blocks = fold(nodes).blocks

    assert [block.title for block in blocks] == [f"net/pitch/conv_{b.start}" for b in blocks]


def test_nodes_of_one_name_in_other_scopes_tell_blocks_apart() -> None:
    # Two blocks of one stage that both begin with a Conv, as those of a YOLO do.
    names = [
        f"/model.{i // 20}/m.{i % 20 // 10}/{'cv1' if i % 2 else 'cv2'}/Conv" for i in range(80)
    ]
    nodes = [node(i, (i - 1,) if i else (), name) for i, name in enumerate(names)]

    titles = [block.title for block in fold(nodes).blocks]

    assert len(titles) == len(set(titles))


def test_blocks_whose_nodes_have_one_name_are_numbered() -> None:
    nodes = [node(i, (i - 1,) if i else (), "/same/Add") for i in range(80)]

    titles = [block.title for block in fold(nodes).blocks]

    assert titles[:3] == ["same/Add", "same/Add (2)", "same/Add (3)"]
    assert len(titles) == len(set(titles))


@pytest.fixture(scope="module")
def result() -> lowbit.Result:
    return lowbit.quantize(small_cnn(), data=small_feeds(6))


@pytest.fixture(scope="module")
def network(result) -> Network:
    return draw_network(result.quantized, find_quantizers(result.quantized))


def test_nodes_and_edges_are_those_that_were_quantized(network, result) -> None:
    nodes = list(result.state.adapted.graph)
    wanted = {
        (value.producer().name, node.name)
        for node in nodes
        for value in node.inputs
        if value is not None and value.producer() is not None
    }

    names = [node.name for node in network.nodes]
    found = {(names[i], node.name) for node in network.nodes for i in node.inputs}

    assert set(names) == {node.name for node in nodes}
    assert found == wanted
    assert all(i < index for index, node in enumerate(network.nodes) for i in node.inputs)


def test_tensors_are_called_as_before_and_formats_known(network, result) -> None:
    outputs = {value.name for node in result.state.adapted.graph for value in node.outputs}

    assert {node.tensor for node in network.nodes} <= outputs
    quantized = {tensor.name for tensor in result.plan.activations()}
    assert {node.tensor for node in network.nodes if node.format == "int8"} == quantized & outputs
    assert any("w1" in node.weights for node in network.nodes)


def test_what_is_in_float_is_told_apart() -> None:
    floats = draw_network(ir.from_proto(small_cnn()), ())

    assert not any(node.quantized for node in floats.nodes)
    assert {node.format for node in floats.nodes} == {""}


def test_what_a_subgraph_reads_counts_for_its_node() -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["outer"], ["inside"], "inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("inside", TensorProto.FLOAT, [1])],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["outer"], "relu"),
            helper.make_node("If", ["flag"], ["y"], "if", then_branch=branch, else_branch=branch),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    found = draw_network(ir.from_proto(model), ())

    assert [node.inputs for node in found.nodes] == [(), (0,)]
