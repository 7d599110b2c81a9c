"""Along which axis the blocks of a tensor lie: that of the sum its numbers take part in.

Hardware multiplies blocks, so that both sides of a matrix product must be cut along the dimension
that is summed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from lowbit.config.specs import BfpSpec, MxSpec
from lowbit.graph.editing import is_constant
from lowbit.graph.naming import tensor_name
from lowbit.planning.placement import Draft
from lowbit.targets.target import BlockAxes


def block_axes(graph: ir.Graph, draft: Draft, rule: BlockAxes) -> Mapping[str, int]:
    """Return the axis of every planned tensor in blocks.

    What no operator decides is cut along the channels: axis 1, or the last one where tensors are
    sequences (three dimensions or fewer); under the rule ``quark`` always along axis 1.
    """
    blocks = {
        name
        for name, wish in (*draft.activations.items(), *draft.weights.items())
        if isinstance(wish.spec, (BfpSpec, MxSpec))
    }
    if not blocks:
        return {}
    values = ir.convenience.create_value_mapping(graph)
    axes = {name: _default(values[name], rule) for name in blocks}
    wanted = _quark(graph) if rule == "quark" else _contracted(graph)
    axes.update({tensor_name(v): axis for v, axis in wanted if v.name in blocks})
    return {name: _fitting(axis, values[name]) for name, axis in axes.items()}


def _default(value: ir.Value, rule: BlockAxes) -> int:
    rank = _rank(value)
    if rule == "quark":
        return 1
    return 1 if rank is not None and rank > 3 else -1


def _fitting(axis: int, value: ir.Value) -> int:
    """Return an axis the value has; constants, whose rank is certain, count from the front."""
    rank = _rank(value)
    if rank is None:
        return axis
    axis = min(axis, rank - 1)
    return axis % rank if is_constant(value) else axis


def _quark(graph: ir.Graph) -> Iterator[tuple[ir.Value, int]]:
    """Yield what AMD Quark refines, node after node: a later one overrides an earlier one."""
    for node in graph:
        if node.op_type in ("MatMul", "Gemm", "Softmax"):
            yield from _inputs(node)
        if node.op_type == "MatMul":
            yield node.outputs[0], -1


def _contracted(graph: ir.Graph) -> Iterator[tuple[ir.Value, int]]:
    """Yield what operators write first, so that what they read overrides it."""
    for node in graph:
        if node.op_type in ("Conv", "ConvTranspose"):
            yield node.outputs[0], 1
    for node in graph:
        yield from _inputs(node)


def _inputs(node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
    axes: tuple[int, ...]
    match node.op_type:
        case "MatMul":
            axes = (-1, -2)
        case "Gemm":
            transposed = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
            axes = (0 if transposed[0] else 1, 1 if transposed[1] else 0)
        case "Softmax":
            axes = (node.attributes.get_int("axis", -1),)
        case "Conv":
            axes = (1, 1)
        case "ConvTranspose":
            axes = (1, 0)
        case _:
            return
    for value, axis in zip(node.inputs, axes, strict=False):
        if value is not None:
            yield value, axis


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else value.shape.rank()
