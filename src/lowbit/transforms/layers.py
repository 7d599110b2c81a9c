"""Linear layers with constant weights, to read, scale and write back."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import add_constant, constant, replace_constant
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.numerics.formats import FloatArray
from lowbit.ops.channels import ChannelLayout
from lowbit.ops.geometry import LinearLayer
from lowbit.ops.linear import LAYERS, LinearOperator, layer_of, linear_operator


def output_ranges(kernel: FloatArray) -> FloatArray:
    """Return the largest absolute weight of each output channel of ``[group, out, in, taps]``."""
    return np.asarray(np.abs(kernel).max(axis=(2, 3), initial=0)).reshape(-1)


def input_ranges(kernel: FloatArray) -> FloatArray:
    """Return the largest absolute weight of each input channel of ``[group, out, in, taps]``."""
    return np.asarray(np.abs(kernel).max(axis=(1, 3), initial=0)).reshape(-1)


@dataclasses.dataclass(slots=True, eq=False)
class WeightedLayer:
    """A linear layer with copies of its weights.

    ``kernel`` is a view of ``weight`` as ``[group, out, in, taps]``: scaling it scales both.
    """

    node: ir.Node
    geometry: LinearLayer
    weight: FloatArray
    kernel: FloatArray
    bias: FloatArray | None

    @property
    def operator(self) -> LinearOperator:
        """The row of its operator."""
        return LAYERS[operator_name(self.node)]

    @property
    def source(self) -> str:
        """The name of the tensor it reads."""
        value = self.node.inputs[0]
        if value is None:
            raise ValueError(f"node {self.node.name!r} reads nothing")
        return tensor_name(value)

    @property
    def outputs(self) -> int:
        """How many channels it produces."""
        return self.geometry.channels

    @property
    def inputs(self) -> int:
        """How many channels it consumes."""
        return self.geometry.groups * self.geometry.inputs

    @property
    def has_shared_weight(self) -> bool:
        """Whether another node reads the same weights."""
        value = self.node.inputs[1]
        return value is not None and len(value.uses()) > 1

    def output_layout(self) -> ChannelLayout | None:
        """Return where the channels of its output lie, or ``None`` if that is not known."""
        if not self.operator.is_matrix:
            return ChannelLayout(self.operator.output_axis, self.weight.ndim)
        if self.operator.bias is not None:
            wide = self.bias is not None and self.bias.ndim > 2
            return None if wide else ChannelLayout(1, 2)
        shape = self.node.outputs[0].shape
        if shape is None or len(shape) < 2:
            return None
        return ChannelLayout(len(shape) - 1, len(shape))

    def consumes(self, layout: ChannelLayout, channels: int) -> bool:
        """Whether its inputs are the channels of a tensor with that layout."""
        matrix = self.operator.is_matrix
        axis = layout.rank - 1 if matrix else 1
        fits = self.inputs == channels * layout.repeat and layout.axis == axis
        return fits and (layout.repeat == 1 or matrix)

    def scale_outputs(self, factors: FloatArray) -> None:
        """Multiply what the layer computes."""
        groups, outputs = self.kernel.shape[:2]
        self.kernel *= factors.reshape(groups, outputs, 1, 1)
        if self.bias is not None:
            self.bias *= factors

    def scale_inputs(self, factors: FloatArray) -> None:
        """Multiply the weights on what the layer reads."""
        self.kernel *= factors.reshape(len(self.kernel), 1, -1, 1)

    def write(self, graph: ir.Graph) -> None:
        """Put weights and bias back. Changes ``graph``."""
        replace_constant(graph, self.node, 1, self.weight)
        if self.bias is not None:
            replace_constant(graph, self.node, 2, self.bias)


def find_layer(node: ir.Node) -> WeightedLayer | None:
    """Return the layer that a node is, or ``None`` where its weights or bias are not constant."""
    geometry = layer_of(node) if linear_operator(node) is not None else ""
    if isinstance(geometry, str):
        return None
    weight = _own_floats(node.inputs[1])
    offset = node.inputs[2] if len(node.inputs) > 2 else None
    bias = _own_floats(offset)
    if weight is None or weight.ndim < 2 or (offset is not None and bias is None):
        return None
    outputs = geometry.channels
    if bias is not None and (bias.ndim == 0 or bias.shape[-1] != outputs):
        # A Gemm's bias may be one number for all, or one a row.
        bias = np.broadcast_to(bias, (*bias.shape[:-1], outputs)).copy()
    return WeightedLayer(node, geometry, weight, geometry.kernel(weight), bias)  # type: ignore[arg-type]


def multiply_inputs(graph: ir.Graph, nodes: list[ir.Node], scale: FloatArray, name: str) -> None:
    """Put one Mul by a constant before nodes that read the same tensor first. Changes ``graph``.

    ``nodes`` are in the graph's order.
    """
    value = nodes[0].inputs[0]
    if value is None:
        raise ValueError(f"node {nodes[0].name!r} has no input to multiply")
    node = ir.node("Mul", [value, add_constant(graph, f"{name}_scale", scale)], name=f"{name}_mul")
    (result,) = node.outputs
    result.name, result.type, result.shape = f"{name}_output", value.type, value.shape
    graph.insert_before(nodes[0], node)
    for consumer in nodes:
        consumer.replace_input_with(0, result)


def _own_floats(value: ir.Value | None) -> FloatArray | None:
    data = constant(value)
    return np.array(data, order="C") if data is not None and data.dtype == np.float32 else None
