"""Conditions that are constant: an If becomes the branch that is taken.

A condition is constant when it follows from constants, and from sizes that the model's shapes fix.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import add_constant, is_constant, node_inputs, take_over
from lowbit.graph.naming import absorb, tensor_name
from lowbit.graph.onnx_passes import infer_types
from lowbit.normalize.simplify import drop_identities, fold_constants
from lowbit.ops.families import READ_SHAPES


def fold_conditions(model: ir.Model) -> None:
    """Replace every If of a constant condition by its branch, branches in branches too. Changes ``model``."""
    inlined = False
    while _ifs(model.graph):
        if any(not is_constant(node.inputs[0]) for node in _ifs(model.graph)):
            infer_types(model)
            _fix_sizes(model.graph)
            fold_constants(model)
        chosen = [node for node in _ifs(model.graph) if is_constant(node.inputs[0])]
        for node in chosen:
            _inline(model.graph, node)
        if not chosen:
            break
        inlined = True
        drop_identities(model)
        fold_constants(model)
    if inlined:
        infer_types(model)
        _scalar_ranges(model.graph)


def _scalar_ranges(graph: ir.Graph) -> None:
    """Make every Range read scalars: it runs on [1], but onnxruntime does not load it where [1] is constant."""
    for node in tuple(graph):
        for index, value in enumerate(node.inputs if node.op_type == "Range" else ()):
            if value is not None and value.shape is not None and len(value.shape) == 1:
                scalar = ir.node("Squeeze", [value], name=f"{node.name}_scalar_{index}")
                scalar.outputs[0].name = f"{node.name}_scalar_{index}"
                scalar.outputs[0].type, scalar.outputs[0].shape = value.type, ir.Shape([])
                graph.insert_before(node, scalar)
                node.replace_input_with(index, scalar.outputs[0])


def _ifs(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.op_type == "If" and node.domain == ""]


def _fix_sizes(graph: ir.Graph) -> None:
    """Turn sizes that are known beforehand to constants, where conditions follow from them alone."""
    for node in _ifs(graph):
        before = _computing(node.inputs[0])
        if before is not None:
            for each in before:
                if each.op_type in READ_SHAPES:
                    _make_constant(graph, each)


def _computing(value: ir.Value | None) -> list[ir.Node] | None:
    """Return the nodes that compute a value from constants and known sizes alone, or ``None``."""
    pending, found = [value], dict[ir.Node, None]()
    while pending:
        value = pending.pop()
        producer = value.producer() if value is not None else None
        if value is None or is_constant(value) or producer in found:
            continue
        if producer is None:
            return None
        found[producer] = None
        if producer.op_type not in READ_SHAPES or producer.domain != "":
            pending += node_inputs(producer)
        elif _sizes(producer) is None:
            return None
    return list(found)


def _sizes(node: ir.Node) -> list[int] | None:
    """Return what a Shape or Size computes, if all sizes are known."""
    source = node.inputs[0]
    shape = None if source is None else source.shape
    if shape is None:
        return None
    start = node.attributes.get_int("start", 0)
    sizes = list(shape)[start : node.attributes.get_int("end", len(shape))]
    known = [size for size in sizes if isinstance(size, int) and size >= 0]
    return known if len(known) == len(sizes) else None


def _make_constant(graph: ir.Graph, node: ir.Node) -> None:
    sizes = _sizes(node)
    if sizes is None or node.outputs[0].is_graph_output() or node.graph is not graph:
        return
    data = np.array(np.prod(sizes) if node.op_type == "Size" else sizes, np.int64)
    value = add_constant(graph, f"{tensor_name(node.outputs[0])}_sizes", data)
    node.outputs[0].replace_all_uses_with(value)
    graph.remove(node, safe=True)


def _inline(graph: ir.Graph, node: ir.Node) -> None:
    """Put the nodes of the branch that is taken in the place of an If."""
    condition = node.inputs[0]
    tensor = None if condition is None else condition.const_value
    taken = tensor is not None and bool(np.asarray(tensor.numpy()).any())
    branch = node.attributes["then_branch" if taken else "else_branch"].as_graph()
    nodes = list(branch)
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    results = list(branch.outputs)
    branch.outputs.clear()
    for value, old in zip(results, node.outputs, strict=True):
        same = ir.node("Identity", [value], name=f"{tensor_name(old)}_branch")
        graph.insert_before(node, same)
        take_over(old, same.outputs[0])
        producer = value.producer()
        if producer is not None:
            absorb(producer, node)
    graph.remove(node, safe=True)
