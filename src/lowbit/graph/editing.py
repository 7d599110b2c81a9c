"""Editing a graph: constants, node order, and nodes put in while tensors keep their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.naming import answer_to, names_of, tensor_name

ARITHMETIC = "lowbit.arithmetic"
"""Mark of nodes that belong to the operator before them: a device's own arithmetic."""

REQUANTIZED = "lowbit.requantization"
"""Mark of an Identity between two names of a tensor, one for each format it has."""


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer that no feed can replace."""
    return value is not None and value.is_initializer() and not value.is_graph_input()


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the data of a constant, or ``None`` for anything else."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return value.const_value.numpy()


def read_tensor(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """Return the data of a tensor, of one outside the file as a copy that nothing else keeps.

    onnx-ir maps the file it is in and keeps the mapping, which adds up to all weights.
    """
    if not isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8 or not tensor.size:
        return tensor.numpy()
    dtype = np.dtype(tensor.dtype.numpy()).newbyteorder("<")
    flat = np.fromfile(tensor.path, dtype, tensor.size, offset=tensor.offset or 0)
    return flat.reshape(tensor.shape.numpy())


def constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant without reading it, or ``None`` for anything else."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return tuple(value.const_value.shape.numpy())


def scalar(value: ir.Value | None) -> float | None:
    """Return a constant of one element as a number, or ``None``."""
    data = constant(value)
    return float(data.reshape(-1)[0]) if data is not None and data.size == 1 else None


def add_constant(graph: ir.Graph, name: str, data: NDArray[Any] | ir.TensorProtocol) -> ir.Value:
    """Register ``data`` under ``name``, or a free name like it, and return its value."""
    name = free_name(graph, name)
    if isinstance(data, (np.ndarray, np.generic)):
        # Not ir.tensor: its checks of protocols take longer than all the rest of emission.
        data = ir.Tensor(np.asarray(data), name=name)
    value = ir.val(name, const_value=data)
    graph.register_initializer(value)
    return value


def free_name(graph: ir.Graph, name: str) -> str:
    """Return ``name``, with a number behind it if an initializer has it already."""
    candidate, count = name, 0
    while candidate in graph.initializers:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def is_sorted(graph: ir.Graph) -> bool:
    """Whether every node stands behind those it reads from; unknown, so no, with subgraphs."""
    seen: set[ir.Node] = set()
    for node in graph:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in seen:
                return False
        if any(a.type in _SUBGRAPHS for a in node.attributes.values()):
            return False
        seen.add(node)
    return True


_SUBGRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


KEPT = "lowbit.kept"
"""Mark of nodes that no rewrite may touch."""


def candidates(graph: ir.Graph) -> tuple[ir.Node, ...]:
    """Return the standard operators' nodes that may be rewritten, in order."""
    return tuple(node for node in graph if node.domain == "" and not node.meta.get(KEPT))


def replace_node(graph: ir.Graph, old: ir.Node, new: Sequence[ir.Node]) -> None:
    """Let the last of ``new`` write what ``old`` wrote, under the same tensor names."""
    new[-1].name = old.name
    for node in new:
        answer_to(node, *names_of(old))
    graph.insert_before(old, list(new))
    for before, after in zip(old.outputs, new[-1].outputs, strict=True):
        take_over(before, after)
    graph.remove(old, safe=True)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let ``new`` stand wherever ``old`` did, with its name, type and shape."""
    name = old.name
    new.type, new.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = f"{name}_replaced"
    new.name = name


def append_factor(graph: ir.Graph, node: ir.Node, factor: ir.Value) -> None:
    """Multiply a node's output by a constant, as part of that node's own arithmetic."""
    output = node.outputs[0]
    name = tensor_name(output)
    product = ir.node("Mul", [output, factor], name=f"{name}_Mul")
    product.meta[ARITHMETIC] = True
    result = product.outputs[0]
    result.type, result.shape = output.type, output.shape
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    product.replace_input_with(0, output)
    output.name, result.name = f"{name}_Mul", name
    graph.insert_after(node, product)
