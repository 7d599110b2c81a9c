"""Integers in the graph: QuantizeLinear and DequantizeLinear.

Names are those onnxruntime's tools look for: ``T_scale``, ``T_QuantizeLinear_Output``,
``T_DequantizeLinear_Output``, ``W_quantized``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.emit.dynamic import IntegerProducts
from lowbit.emit.embeddings import EmbeddingNodes, Table
from lowbit.emit.emission import Emission, EmittedTensor
from lowbit.emit.functions import (
    PAIR,
    dequantize_body,
    quantize_body,
    spread_along,
)
from lowbit.emit.packed import Matrix, PackedNodes
from lowbit.emit.recurrent import RecurrentNodes
from lowbit.graph.editing import constant_shape, only_consumer
from lowbit.graph.naming import MICROSOFT, tensor_name
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.linear import has_constant_weight
from lowbit.ops.traits import is_data_movement
from lowbit.planning.plan import BiasPlan, TensorPlan
from lowbit.scales.stored import Stored

# So many numbers may be stored once more.
_SMALL = 1 << 12

# The standard Q/DQ take 16 and 4 bits from this operator set on.
_WIDE_OPSET = 21


class IntegerNodes:
    """QuantizeLinear and DequantizeLinear of integers."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._context = context
        self._domain = context.options.domain
        self._embeddings = EmbeddingNodes(context)
        self._packed = PackedNodes(context)
        self._products = IntegerProducts(context)
        self._recurrent = RecurrentNodes(context)
        self._scales: dict[str, tuple[ir.Value, ir.Value]] = {}

    def activation(self, tensor: TensorPlan) -> EmittedTensor:
        """Make all consumers of an activation read it through a Q/DQ pair."""
        name, params = tensor.name, self._context.params.tensors[tensor.name]
        value = self._editor.values[name]
        scale, zero_point = self._parameters(tensor.leader, params)
        domain = None if params.format.bits == 32 else self._domain_of(params.format)
        if (
            self._domain == "auto"
            and domain is not None
            and self._trips_onnxruntime(value, params.format)
        ):
            domain = MICROSOFT
        quantizer = self._node("QuantizeLinear", [value, scale, zero_point], name, params, domain)
        dequantizer = self._node(
            "DequantizeLinear", [quantizer.outputs[0], scale, zero_point], name, params, domain
        )
        self._editor.put_after(value, [quantizer, dequantizer], tensor.consumers)
        names = (tensor_name(node.outputs[0]) for node in (quantizer, dequantizer))
        return EmittedTensor(*names)

    def weight(self, tensor: TensorPlan, make: Callable[[], Stored]) -> EmittedTensor:
        """Store a constant as integers before a DequantizeLinear."""
        name, params = tensor.name, self._context.params.tensors[tensor.name]
        value = self._editor.values[name]
        fmt = params.format
        products = self._packed.products(tuple(value.uses()), params)
        if products:
            shape = constant_shape(value) or (0, 0)
            packed = self._packed.write(products, Matrix(name, (shape[0], shape[1]), params, make))
            if not value.uses() and not value.is_graph_output():
                return EmittedTensor(packed, packed)
        layers = self._recurrent.layers(tuple(value.uses()))
        if layers:
            layer_weight = self._recurrent.write(layers, name, make)
            if not value.uses() and not value.is_graph_output():
                return EmittedTensor(layer_weight, layer_weight)
        stored = self._editor.lazy(
            f"{name}_quantized", value, _DTYPES[fmt], lambda taken: _tensor(make(), fmt, taken)
        )
        scale, zero_point = self._parameters(name, params)
        for product in self._products.products(tuple(value.uses()), params):
            self._products.write(product, stored, scale)
        table = Table(name, stored, scale, zero_point if params.zero_point.any() else None, params)
        for embedding in self._embeddings.picked(tuple(value.uses()), params):
            self._embeddings.write(embedding, table)
        if not value.uses() and not value.is_graph_output():
            return EmittedTensor(tensor_name(stored), tensor_name(stored))
        self._separate(tensor, value, make)
        node = self._node("DequantizeLinear", [stored, scale, zero_point], name, params)
        result = self._editor.read_through(value, tuple(value.uses()), [node])
        return EmittedTensor(tensor_name(stored), tensor_name(result))

    def _separate(self, tensor: TensorPlan, value: ir.Value, make: Callable[[], Stored]) -> None:
        """Give each consumer of a small int8 constant but the first a copy; weights of layers share on.

        onnxruntime (1.31) does not load one that several share if it is asked for exact arithmetic
        (``session.x64quantprecision``). Layers have their own by a rewrite, where it is asked for.
        """
        params = self._context.params.tensors[tensor.name]
        shape = constant_shape(value)
        is_small = shape is not None and math.prod(shape) <= _SMALL
        is_weight = any(index == 1 and has_constant_weight(node) for node, index in value.uses())
        if params.format is not IntegerFormat.INT8 or not is_small or is_weight:
            return
        for consumer, index in tuple(value.uses())[1:]:
            name = f"{tensor.name}_{consumer.name}"
            stored = self._editor.lazy(
                f"{name}_quantized",
                value,
                _DTYPES[params.format],
                lambda taken: _tensor(make(), params.format, taken),
            )
            inputs = [stored, *self._parameters(f"{name}_{index}", params)]
            node = self._node("DequantizeLinear", inputs, name, params)
            self._editor.read_through(value, ((consumer, index),), [node])

    def bias(self, row: BiasPlan, params: QParams, codes: NDArray[np.integer]) -> EmittedTensor:
        """Store the bias of one node as integers before a DequantizeLinear."""
        editor = self._editor
        value = editor.values[row.tensor]
        node = editor.nodes[row.node]
        shared = len(value.uses()) > 1
        name = f"{row.node}_bias" if shared else row.tensor
        stored = editor.constant(f"{name}_quantized", codes)
        scale = editor.constant(f"{name}_quantized_scale", params.scale)
        zero_point = editor.constant(f"{name}_quantized_zero_point", params.zero_point)
        if row.factor != 1.0:
            # The integers stand for the bias times this factor.
            node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
        # Of 32 bits, the standard operator reads int32 without a zero point.
        plain = params.format.signed and not params.zero_point.any()
        domain = self._domain_of(params.format) if plain else None
        inputs = [stored, scale, zero_point]
        dequantizer = self._node("DequantizeLinear", inputs, name, params, domain)
        result = editor.read_through(value, ((node, row.index),), [dequantizer])
        result.shape = ir.Shape(codes.shape)
        return EmittedTensor(tensor_name(stored), tensor_name(result))

    def _node(
        self,
        op: str,
        inputs: list[ir.Value],
        name: str,
        params: QParams,
        domain: str | None = None,
    ) -> ir.Node:
        attributes = {} if params.axis is None else {"axis": params.axis}
        if params.group_size is not None:
            # Only the standard operator knows scales per group.
            attributes["block_size"], domain = params.group_size, ""
        if domain is None and params.format.bits == 32:
            return self._named(op, inputs, name, params)
        domain = self._domain_of(params.format) if domain is None else domain
        return self._editor.node(op, inputs, f"{name}_{op}", attributes, domain)

    def _named(self, op: str, inputs: list[ir.Value], name: str, params: QParams) -> ir.Node:
        """Return AMD's operator, with its body: of 32 bits the standard ones only read biases.

        Weights too: onnxruntime would put a standard operator into kernels that take 8 bits alone.
        """
        spread: list[int] = []
        attributes: dict[str, int] = {}
        if params.axis is not None:
            spread = spread_along(params.axis, len(inputs[0].shape or ()) or 1)
            attributes["axis"] = params.axis
        body = dequantize_body(spread)
        if op == "QuantizeLinear":
            body = quantize_body(_DTYPES[params.format], spread)
        signature = f"<axis> {PAIR}" if spread else PAIR
        call = self._context.functions.define(f"Extended{op}", signature, body)
        return self._editor.node(f"Extended{op}", inputs, f"{name}_{op}", attributes, call.domain)

    def _domain_of(self, fmt: IntegerFormat) -> str:
        if self._domain == "auto":
            wide = fmt.bits not in (8, 32)
            return MICROSOFT if wide and self._editor.opset < _WIDE_OPSET else ""
        return "" if self._domain == "ai.onnx" else self._domain

    def _trips_onnxruntime(self, value: ir.Value, fmt: IntegerFormat) -> bool:
        """Whether onnxruntime's optimizer would make an invalid graph of a standard pair here.

        Up to 1.31 it moves a DequantizeLinear over a float Reshape, Transpose and the like, also over the
        Reshape with which it makes a Gemm of MatMul and bias. From opset 21 on, the QuantizeLinear that
        it puts in that place has a zero point of the wrong type for signed formats, and the model no
        longer loads. It leaves pairs of its own domain alone.
        """
        if self._editor.opset < _WIDE_OPSET or not fmt.signed:
            return False
        return any(
            self._moves_in_float(node) or _becomes_gemm(node, value) for node in value.consumers()
        )

    def _parameters(self, leader: str, params: QParams) -> tuple[ir.Value, ir.Value]:
        if leader not in self._scales:
            zero_point = self._editor.tensor(
                f"{leader}_zero_point",
                lambda name: _tensor(params.zero_point, params.format, name),
            )
            scale = self._editor.constant(f"{leader}_scale", params.scale)
            self._scales[leader] = (scale, zero_point)
        return self._scales[leader]

    def _moves_in_float(self, node: ir.Node) -> bool:
        planned = self._context.planned
        moves = is_data_movement(node, self._context.options.operators)
        return moves and not any(output.name in planned for output in node.outputs)


def _becomes_gemm(node: ir.Node, value: ir.Value) -> bool:
    """Whether onnxruntime makes a Gemm of a product and the bias after it, its input made a matrix."""
    follower = only_consumer(node.outputs[0])
    if node.op_type != "MatMul" or follower is None or follower.op_type != "Add":
        return False
    is_known = value.shape is not None and all(isinstance(size, int) for size in value.shape)
    return is_known and value.shape is not None and value.shape.rank() > 2


_DTYPES = {
    IntegerFormat.INT4: ir.DataType.INT4,
    IntegerFormat.UINT4: ir.DataType.UINT4,
    IntegerFormat.INT8: ir.DataType.INT8,
    IntegerFormat.UINT8: ir.DataType.UINT8,
    IntegerFormat.INT16: ir.DataType.INT16,
    IntegerFormat.UINT16: ir.DataType.UINT16,
    IntegerFormat.INT32: ir.DataType.INT32,
    IntegerFormat.UINT32: ir.DataType.UINT32,
}


def _tensor(data: NDArray[np.integer], fmt: IntegerFormat, name: str) -> ir.TensorProtocol:
    if fmt.bits == 4:
        import ml_dtypes

        data = data.astype(ml_dtypes.int4 if fmt.signed else ml_dtypes.uint4)
    return ir.Tensor(np.asarray(data), dtype=_DTYPES[fmt], name=name)
