"""Handing a graph to onnx's own tools without its weights.

They work on serialized messages, which end at 2 GB and cost memory long before. Small constants
stay, since shapes and axes are read from them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    import onnx

# Shapes, axes, scales and bounds are smaller, weights larger.
_LARGEST_KEPT_BYTES = 1024


@contextlib.contextmanager
def light_proto(model: ir.Model) -> Iterator[tuple[onnx.ModelProto, Mapping[str, ir.Value]]]:
    """Yield ``model`` as a message in which weights are inputs, and those weights by name."""
    heavy = [
        value
        for value in model.graph.initializers.values()
        if value.const_value is not None
        and value.const_value.nbytes > _LARGEST_KEPT_BYTES
        and not value.is_graph_input()
        and not value.is_graph_output()
    ]
    inputs = len(model.graph.inputs)
    for value in heavy:
        _describe(value)
        del model.graph.initializers[str(value.name)]
    model.graph.inputs.extend(heavy)
    try:
        yield ir.to_proto(model), {str(value.name): value for value in heavy}
    finally:
        model.graph.inputs[inputs:] = []
        for value in heavy:
            model.graph.register_initializer(value)


def _describe(value: ir.Value) -> None:
    """Write down type and shape, which an initializer may leave to its data."""
    tensor = value.const_value
    if tensor is not None:
        value.type = ir.TensorType(tensor.dtype)
        value.shape = ir.Shape(tensor.shape.numpy())
