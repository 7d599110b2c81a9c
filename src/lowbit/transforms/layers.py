"""Layers with constant weights: their weights in one shape, to read, scale and write back."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import add_constant, constant, is_constant
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import FloatArray
from lowbit.transforms import _cross_layer_math

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclasses.dataclass(slots=True, eq=False)
class Layer:
    """A node that multiplies by constant weights, with copies of them.

    ``kernel`` is a view of ``weight`` as ``[group, out, in, rest]``: scaling it scales both.
    """

    node: ir.Node
    weight: FloatArray
    kernel: FloatArray
    bias: FloatArray | None

    @property
    def source(self) -> str:
        """The name of the tensor it reads."""
        value = self.node.inputs[0]
        if value is None:
            raise ValueError(f"node {self.node.name!r} reads nothing")
        return tensor_name(value)

    @property
    def outputs(self) -> int:
        """How many channels it writes."""
        return int(self.kernel.shape[0] * self.kernel.shape[1])

    @property
    def inputs(self) -> int:
        """How many channels it reads."""
        return int(self.kernel.shape[0] * self.kernel.shape[2])

    def scale_outputs(self, factors: FloatArray) -> None:
        """Multiply what the layer writes."""
        _cross_layer_math.scale_outputs(self.kernel, factors)
        if self.bias is not None:
            self.bias *= factors

    def scale_inputs(self, factors: FloatArray) -> None:
        """Multiply the weights on what the layer reads."""
        _cross_layer_math.scale_inputs(self.kernel, factors)

    def write(self, graph: ir.Graph) -> None:
        """Put weights and bias back. Changes ``graph``."""
        give_constant(graph, self.node, 1, self.weight)
        if self.bias is not None:
            give_constant(graph, self.node, 2, self.bias)


def find_layer(node: ir.Node) -> Layer | None:
    """Return the layer that a node is, or ``None`` where its weights or bias are not constant."""
    if node.op_type not in LAYERS or node.domain != "" or len(node.inputs) < 2:
        return None
    if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) != 0:
        return None
    weight = _own_floats(node.inputs[1])
    offset = node.inputs[2] if len(node.inputs) > 2 else None
    bias = _own_floats(offset)
    if weight is None or weight.ndim < 2 or (offset is not None and bias is None):
        return None
    if node.op_type == "MatMul" and weight.ndim != 2:
        return None
    kernel = _kernel(node, weight)
    outputs = int(kernel.shape[0] * kernel.shape[1])
    if bias is not None and (bias.ndim == 0 or bias.shape[-1] != outputs):
        # A Gemm's bias may be one number for all, or one a row.
        bias = np.broadcast_to(bias, (*bias.shape[:-1], outputs)).copy()
    return Layer(node, weight, kernel, bias)


def has_shared_weight(layer: Layer) -> bool:
    """Whether another node reads the same weights."""
    value = layer.node.inputs[1]
    return value is not None and len(value.uses()) > 1


def give_constant(graph: ir.Graph, node: ir.Node, index: int, data: FloatArray) -> None:
    """Replace a node's constant; others that share the old one keep it. Changes ``graph``."""
    value = node.inputs[index]
    if value is None:
        raise ValueError(f"node {node.name!r} has no input {index} to replace")
    if len(value.uses()) == 1 and not value.is_graph_output():
        value.const_value = ir.tensor(data, name=value.name)
        value.shape = ir.Shape(data.shape)
    else:
        node.replace_input_with(index, add_constant(graph, f"{node.name}_{index}", data))


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
    for reader in nodes:
        reader.replace_input_with(0, result)


def _own_floats(value: ir.Value | None) -> FloatArray | None:
    data = constant(value) if is_constant(value) else None
    return np.array(data, order="C") if data is not None and data.dtype == np.float32 else None


def _kernel(node: ir.Node, weight: FloatArray) -> FloatArray:
    """Return the weights as ``[group, out, in, rest]``, sharing their memory."""
    group = node.attributes.get_int("group", 1)
    match node.op_type:
        case "Conv":
            return weight.reshape(group, weight.shape[0] // group, weight.shape[1], -1)
        case "ConvTranspose":
            split = weight.reshape(group, weight.shape[0] // group, weight.shape[1], -1)
            return split.swapaxes(1, 2)
    matrix = weight if node.attributes.get_int("transB", 0) else weight.T
    return matrix[None, :, :, None]
