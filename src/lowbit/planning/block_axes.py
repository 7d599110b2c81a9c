"""Along which axis the blocks of a tensor lie: that of the sum its numbers take part in.

Hardware multiplies blocks, so that both sides of a matrix product must be cut along the dimension
that is summed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from lowbit.graph.editing import is_constant
from lowbit.graph.naming import tensor_name
from lowbit.ops.linear import linear_operator
from lowbit.planning.requests import Placement
from lowbit.targets.target import BlockAxes


def block_axes(graph: ir.Graph, placement: Placement, rule: BlockAxes) -> Mapping[str, int]:
    """Return the axis of every planned tensor in blocks.

    What no operator decides is cut along the channels: axis 1, or the last one where tensors are
    sequences (three dimensions or fewer); under the rule ``channels`` always along axis 1.
    """
    blocks = {
        name
        for name, request in (*placement.activations.items(), *placement.weights.items())
        if request.spec.is_block
    }
    if not blocks:
        return {}
    values = ir.convenience.create_value_mapping(graph)
    axes = {name: _default(values[name], rule) for name in blocks}
    wanted = _by_channels(graph) if rule == "channels" else _contracted(graph)
    axes.update({tensor_name(v): axis for v, axis in wanted if v.name in blocks})
    return {name: _fitting(axis, values[name]) for name, axis in axes.items()}


def _default(value: ir.Value, rule: BlockAxes) -> int:
    rank = _rank(value)
    if rule == "channels":
        return 1
    return 1 if rank is not None and rank > 3 else -1


def _fitting(axis: int, value: ir.Value) -> int:
    """Return an axis the value has; constants, whose rank is certain, count from the front."""
    rank = _rank(value)
    if rank is None:
        return axis
    axis = max(min(axis, rank - 1), -rank)
    return axis % rank if is_constant(value) else axis


def _by_channels(graph: ir.Graph) -> Iterator[tuple[ir.Value, int]]:
    """Yield what differs from axis 1, node after node: a later one overrides an earlier one."""
    for node in graph:
        row = linear_operator(node)
        if node.op_type == "Softmax" or (row is not None and row.is_matrix):
            yield from _inputs(node)
        if row is not None and row.is_matrix and row.bias is None:
            yield node.outputs[0], -1


def _contracted(graph: ir.Graph) -> Iterator[tuple[ir.Value, int]]:
    """Yield what operators compute first, so that what they read overrides it."""
    for node in graph:
        row = linear_operator(node)
        if row is not None and not row.is_matrix:
            yield node.outputs[0], row.output_axis
    for node in graph:
        yield from _inputs(node)


def _inputs(node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
    row = linear_operator(node)
    axes: tuple[int, ...] = ()
    if row is not None:
        axes = (row.input_axis(node), row.reduced_axis(node))
    elif node.op_type == "Softmax":
        axes = (node.attributes.get_int("axis", -1),)
    for value, axis in zip(node.inputs, axes, strict=False):
        if value is not None:
            yield value, axis


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else value.shape.rank()
