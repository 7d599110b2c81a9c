"""Remove the traces that exporters store at every node for their own developers.

PyTorch's newer exporter stores the stack trace, the source expression and the modules of every node as
metadata: paths of the machine it ran on, and often more bytes than the quantized weights of a small model.
Metadata of the model itself (class names, strides) is its user's, and stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from lowbit.graph.tensors import every_graph_of

# Exporters put the name of their package first; PyTorch repeats the modules for one viewer.
_PREFIX = "pkg."
_VIEWER = "namespace"


def drop_export_traces(model: ir.Model) -> None:
    """Remove what exporters noted at nodes, values and graphs. Changes ``model``."""
    for holder in _holders(model):
        for key in _traces(holder):
            del holder.metadata_props[key]


def size_of_export_traces(model: ir.Model) -> int:
    """Return how many characters exporters noted at nodes, values and graphs."""
    return sum(
        len(key) + len(holder.metadata_props[key])
        for holder in _holders(model)
        for key in _traces(holder)
    )


def _traces(holder: Any) -> list[str]:
    return [k for k in holder.metadata_props if k.startswith(_PREFIX) or k == _VIEWER]


def _holders(model: ir.Model) -> Iterator[Any]:
    """Yield everything below the model that has metadata."""
    yield from model.functions.values()
    for graph in every_graph_of(model):
        yield graph
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield node
            yield from node.outputs
