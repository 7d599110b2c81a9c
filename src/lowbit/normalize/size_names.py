"""Names of sizes: those that say nothing are left out.

onnxruntime takes tensors whose sizes have the same names to be of one size, and reuses their memory.
"""

from __future__ import annotations

import onnx_ir as ir

from lowbit.graph.nesting import every_graph, every_node
from lowbit.graph.session import Feed


def forget_placeholders(model: ir.Model, sample: Feed) -> None:
    """Leave sizes unnamed that share a name and nothing else, such as ``?``. Changes ``model``."""
    wrong = _contradicted(model, sample)
    values = [v for graph in every_graph(model.graph) for v in (*graph.inputs, *graph.outputs)]
    values += [value for node in every_node(model.graph) for value in node.outputs]
    for value in values:
        if value.shape is not None and any(_is_placeholder(dim, wrong) for dim in value.shape):
            sizes = [None if _is_placeholder(dim, wrong) else dim for dim in value.shape]
            value.shape = ir.Shape(sizes)


def _is_placeholder(dim: int | ir.SymbolicDim, wrong: set[str]) -> bool:
    if isinstance(dim, int) or dim.value is None:
        return False
    return dim.value in wrong or not any(c.isalpha() for c in dim.value)


def _contradicted(model: ir.Model, sample: Feed) -> set[str]:
    """Return the names of sizes that differ in one sample."""
    sizes: dict[str, set[int]] = {}
    for value in model.graph.inputs:
        array = sample.get(value.name or "")
        if array is None or value.shape is None or len(value.shape) != array.ndim:
            continue
        for dim, size in zip(value.shape, array.shape, strict=True):
            if not isinstance(dim, int) and dim.value is not None:
                sizes.setdefault(dim.value, set()).add(size)
    return {name for name, found in sizes.items() if len(found) > 1}
