"""Names of sizes: those that say nothing are left out.

onnxruntime takes tensors whose sizes have the same names to be of one size, and reuses their memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet

import onnx_ir as ir

from lowbit.graph.nesting import every_graph, every_node
from lowbit.graph.session import Feed


def forget_placeholders(model: ir.Model, sample: Feed) -> None:
    """Leave sizes unnamed that share a name and nothing else, such as ``?``. Changes ``model``.

    One that a single size of the model's inputs and outputs has stays there: it is no one else's.
    """
    wrong = _contradicted(model, sample)
    public = dict.fromkeys((*model.graph.inputs, *model.graph.outputs))
    names = Counter(d.value for v in public for d in v.shape or () if not isinstance(d, int))
    single = {name for name, count in names.items() if count == 1}
    values = [v for graph in every_graph(model.graph) for v in (*graph.inputs, *graph.outputs)]
    values += [value for node in every_node(model.graph) for value in node.outputs]
    for value in dict.fromkeys(values):
        kept = single if value in public else frozenset[str | None]()
        placeholders = [_is_placeholder(dim, wrong, kept) for dim in value.shape or ()]
        if value.shape is not None and any(placeholders):
            pairs = zip(value.shape, placeholders, strict=True)
            value.shape = ir.Shape([None if forgotten else dim for dim, forgotten in pairs])


def _is_placeholder(
    dim: int | ir.SymbolicDim, wrong: AbstractSet[str], kept: AbstractSet[str | None]
) -> bool:
    if isinstance(dim, int) or dim.value is None or dim.value in kept:
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
