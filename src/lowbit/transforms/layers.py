"""Linear layers with constant weights, to read, scale and write back."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import (
    add_constant,
    constant,
    constant_shape,
    read_tensor,
    replace_constant,
)
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.numerics.formats import FloatArray
from lowbit.ops.channels import ChannelLayout
from lowbit.ops.geometry import LinearLayer
from lowbit.ops.linear import LAYERS, LinearOperator, layer_of, linear_operator

_BIAS = 2


def output_ranges(kernel: FloatArray) -> FloatArray:
    """Return the largest absolute weight of each output channel of ``[group, out, in, taps]``."""
    return _ranges(kernel, (2, 3))


def input_ranges(kernel: FloatArray) -> FloatArray:
    """Return the largest absolute weight of each input channel of ``[group, out, in, taps]``."""
    return _ranges(kernel, (1, 3))


def _ranges(kernel: FloatArray, axes: tuple[int, int]) -> FloatArray:
    # Absolute values would be as large as the weights.
    highest, lowest = kernel.max(axis=axes, initial=0), kernel.min(axis=axes, initial=0)
    return np.asarray(np.maximum(highest, -lowest)).reshape(-1)


@dataclasses.dataclass(slots=True, eq=False)
class WeightedLayer:
    """A linear layer with copies of its weights.

    ``kernel`` is ``weight`` as ``[group, out, in, taps]``, and ``shape`` the shape of that. Where the
    weights are ``held``, it is a view: what is done to it is done to both. Others are read whenever they
    are asked for, and multiplied by all ``factors`` so far.
    """

    node: ir.Node
    geometry: LinearLayer
    shape: tuple[int, ...]
    bias: FloatArray | None
    held: FloatArray | None = None
    factors: list[FloatArray] = dataclasses.field(default_factory=list)

    @property
    def weight(self) -> FloatArray:
        """The weights as the node stores them."""
        return self._read(self.node.inputs[1]) if self.held is None else self.held

    @property
    def kernel(self) -> FloatArray:
        """The weights by group, output, input and tap."""
        return np.asarray(self.geometry.kernel(self.weight))

    def _read(self, value: ir.Value | None) -> FloatArray:
        weight = _own_floats(value)
        if weight is None:
            raise ValueError(f"node {self.node.name!r} has no constant weights")
        return self.scaled(weight)

    def scaled(self, weight: FloatArray) -> FloatArray:
        """Return a layer's own weights multiplied by the factors so far. Changes ``weight``."""
        kernel = self.geometry.kernel(weight)
        for factor in self.factors:
            np.multiply(kernel, factor, out=kernel)
        return weight

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
            rank = len(constant_shape(self.node.inputs[1]) or ())
            return ChannelLayout(self.operator.output_axis, rank)
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
        groups, outputs = self.shape[:2]
        self._scale(factors.reshape(groups, outputs, 1, 1))
        if self.bias is not None:
            self.bias *= factors

    def scale_inputs(self, factors: FloatArray) -> None:
        """Multiply the weights on what the layer reads."""
        self._scale(factors.reshape(self.shape[0], 1, -1, 1))

    def _scale(self, factors: FloatArray) -> None:
        if self.held is None:
            self.factors.append(factors)
        else:
            kernel = self.kernel
            kernel *= factors

    def add_to_bias(self, graph: ir.Graph, numbers: FloatArray) -> None:
        """Add one number to each output; a layer without a bias gets one. Changes ``graph``."""
        if self.bias is not None:
            self.bias += numbers.astype(np.float32)
            replace_constant(graph, self.node, _BIAS, self.bias)
            return
        self.bias = numbers.astype(np.float32)
        value = add_constant(graph, f"{self.node.name}_bias", self.bias)
        self.node.resize_inputs(_BIAS + 1)
        self.node.replace_input_with(_BIAS, value)

    def write(self, graph: ir.Graph) -> None:
        """Put weights and bias back. Changes ``graph``."""
        if self.held is not None:
            replace_constant(graph, self.node, 1, self.held)
        elif self.factors:
            replace_constant(graph, self.node, 1, self._lazy())
            self.factors = []
        if self.bias is not None:
            replace_constant(graph, self.node, 2, self.bias)

    def _lazy(self) -> ir.LazyTensor:
        """Return a tensor of the multiplied weights, made anew whenever it is read."""
        value = self.node.inputs[1]
        before = None if value is None else value.const_value
        if value is None or before is None:
            raise ValueError(f"node {self.node.name!r} has no constant weights")
        name, made = value.name, dataclasses.replace(self, factors=list(self.factors))
        return ir.LazyTensor(
            lambda: ir.Tensor(made.scaled(np.array(read_tensor(before), order="C")), name=name),
            dtype=before.dtype,
            shape=ir.Shape(before.shape.numpy()),
            name=name,
        )


# Smaller ones are faster kept than read again.
_LARGE_BYTES = 1 << 20


def find_layer(node: ir.Node, *, hold: bool = True) -> WeightedLayer | None:
    """Return the layer that a node is, or ``None`` where its weights or bias are not constant.

    Unless they are to be ``held``, large weights outside the file are read whenever they are asked for.
    """
    geometry = layer_of(node) if linear_operator(node) is not None else ""
    if isinstance(geometry, str):
        return None
    shape = _float_shape(node.inputs[1])
    offset = node.inputs[2] if len(node.inputs) > 2 else None
    bias = _own_floats(offset)
    if shape is None or len(shape) < 2 or (offset is not None and bias is None):
        return None
    outputs = geometry.channels
    if bias is not None and (bias.ndim == 0 or bias.shape[-1] != outputs):
        # A Gemm's bias may be one number for all, or one a row.
        bias = np.broadcast_to(bias, (*bias.shape[:-1], outputs)).copy()
    kernel = geometry.kernel(np.broadcast_to(np.float32(0), shape)).shape
    held = _own_floats(node.inputs[1]) if hold or not _is_outside(node.inputs[1]) else None
    return WeightedLayer(node, geometry, kernel, bias, held)


def find_biased_layer(node: ir.Node, *, hold: bool = True) -> WeightedLayer | None:
    """Return a layer that adds its bias, if it has one, as it is: one number for each channel."""
    layer = find_layer(node, hold=hold)
    if layer is None or layer.operator.bias is None or layer.geometry.alpha != 1:
        return None
    plain = layer.bias is None or layer.bias.ndim == 1
    return layer if plain and layer.operator.bias_factor(node) == 1 else None


def _float_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant of float32, or ``None`` for anything else."""
    shape = constant_shape(value)
    tensor = None if value is None else value.const_value
    return shape if tensor is not None and tensor.dtype == ir.DataType.FLOAT else None


def _is_outside(value: ir.Value | None) -> bool:
    """Whether a constant is large, and not in memory."""
    tensor = None if value is None else value.const_value
    if not isinstance(tensor, (ir.ExternalTensor, ir.LazyTensor)):
        return False
    return tensor.nbytes > _LARGE_BYTES


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
