"""The cost of the nodes of a model: multiply-adds, and elements written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from lowbit.evaluate.runner import Run, run_model
from lowbit.graph.editing import constant_shape, is_constant
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed
from lowbit.ops.linear import linear_operator


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCost:
    """The multiply-adds of a node for one sample, and the number of elements it writes."""

    multiply_adds: int
    elements: int


def node_costs(model: ir.Model, feed: Feed) -> Mapping[str, NodeCost]:
    """Return the cost of each node of the graph, with the shapes that one sample gives."""
    nodes = [node for node in model.graph if node.outputs and node.outputs[0].name]
    wanted = {tensor_name(node.outputs[0]) for node in nodes}
    products = [node for node in nodes if linear_operator(node) is not None]
    first = [node.inputs[0] for node in products if node.inputs[0] is not None]
    wanted |= {tensor_name(v) for v in first if v.producer() is not None}
    run = dataclasses.replace(Run.float_model(model, sorted(wanted)), keep=_shape)
    shapes = next(run_model(run, [feed]))
    known = {name: tuple(int(d) for d in array) for name, array in shapes.items()}
    known |= {name: np.asarray(array).shape for name, array in feed.items()}
    return {
        str(node.name): NodeCost(
            multiply_adds=_multiply_adds(node, known),
            elements=math.prod(known.get(tensor_name(node.outputs[0]), (0,))),
        )
        for node in nodes
    }


def _shape(_: str, array: Array) -> Array:
    return np.array(np.shape(array), np.int64)


def _multiply_adds(node: ir.Node, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return outputs times what each sums over; 0 for what is no product."""
    row = linear_operator(node)
    if row is None:
        return 0
    written = math.prod(shapes.get(tensor_name(node.outputs[0]), (0,)))
    weight = constant_shape(node.inputs[1]) if is_constant(node.inputs[1]) else None
    if weight is not None:
        channels = weight[row.channel_axis(node) % len(weight)] if weight else 1
        return written * math.prod(weight) // max(1, channels)
    source = node.inputs[0]
    shape = shapes.get(tensor_name(source), ()) if source is not None else ()
    return written * (shape[row.input_axis(node)] if shape else 1)
