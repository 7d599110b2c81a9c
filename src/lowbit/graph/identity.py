"""Hash all that a model computes: its nodes, its names and its values."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir


def hash_model(update: Callable[[bytes], object], *models: ir.Model) -> None:
    """Pass everything that defines models to ``update``; a shared tensor only once."""
    seen: set[int] = set()
    for model in models:
        graph = model.graph
        update(repr(sorted(model.opset_imports.items())).encode())
        for values in (graph.inputs, graph.outputs):
            update(repr([(v.name, str(v.dtype), str(v.shape)) for v in values]).encode())
        for node in graph:
            update(ir.serde.serialize_node(node).SerializeToString(deterministic=True))
        for name, value in sorted(graph.initializers.items()):
            tensor = value.const_value
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            update(tensor.tobytes())
