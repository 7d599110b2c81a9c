"""Write plan, parameters and numbers into the graph: emission decides nothing.

Integers become QuantizeLinear / DequantizeLinear, 16-bit floats and blocks what
``lowbit.emit.floats`` and ``lowbit.emit.blocks`` make of them. Names are those onnxruntime's tools
look for: ``T_scale``, ``T_QuantizeLinear_Output``, ``T_DequantizeLinear_Output``, ``W_quantized``.
A graph output keeps its name.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.config.config import Domain
from lowbit.config.specs import FloatSpec, IntegerSpec
from lowbit.emit.blocks import BlockNodes
from lowbit.emit.floats import CastPairs, FloatNodes, NamedOperators
from lowbit.emit.functions import Functions
from lowbit.emit.writer import Writer
from lowbit.graph.editing import REQUANTIZED
from lowbit.graph.memory import garbage_collection_paused
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.traits import Kind, traits_of
from lowbit.planning.plan import BiasPlan, Plan
from lowbit.scales.parameters import Params
from lowbit.scales.stored import Weights

_MICROSOFT = "com.microsoft"
# The standard Q/DQ take 16 and 4 bits from this operator set on.
_WIDE_OPSET = 21


@garbage_collection_paused()
def emit_qdq(
    model: ir.Model,
    plan: Plan,
    params: Params,
    weights: Weights,
    *,
    domain: Domain = "auto",
    casts: bool = False,
    half_weights: bool = False,
) -> ir.Model:
    """Return a copy of ``model`` in which every planned tensor is quantized and dequantized.

    ``casts`` and ``half_weights`` are for 16-bit floats, as in the configuration.
    """
    writer = Writer(model.clone())
    integers = _IntegerNodes(writer, domain, frozenset(t.name for t in plan.activations()))
    functions = Functions(writer)
    scales = params.scales
    conversion = CastPairs(writer, scales) if casts else NamedOperators(writer, functions, scales)
    floats = FloatNodes(writer, conversion, scales, stored=half_weights)
    blocks = BlockNodes(writer, functions)
    for tensor in plan.activations():
        if isinstance(tensor.spec, IntegerSpec):
            integers.activation(tensor.name, tensor.leader, params.tensors[tensor.name])
        elif isinstance(tensor.spec, FloatSpec):
            floats.activation(tensor, tensor.spec)
        else:
            blocks.activation(tensor, tensor.spec)
    for row in plan.biases:
        integers.bias(row, params.biases[row.node], weights.biases[row.node])
    for tensor in plan.weights():
        name = tensor.name
        if isinstance(tensor.spec, IntegerSpec):
            integers.weight(name, params.tensors[name], weights.tensors[name])
        elif isinstance(tensor.spec, FloatSpec):
            floats.weight(tensor, tensor.spec, weights.floats[name])
        else:
            blocks.weight(tensor, tensor.spec, weights.floats[name])
    writer.join_names(REQUANTIZED)
    return writer.finish()


class _IntegerNodes:
    """QuantizeLinear and DequantizeLinear of integers."""

    def __init__(self, writer: Writer, domain: Domain, planned: frozenset[str]) -> None:
        self._writer = writer
        self._domain = domain
        self._planned = planned
        self._scales: dict[str, tuple[ir.Value, ir.Value]] = {}

    def activation(self, name: str, leader: str, params: QParams) -> None:
        """Let all readers of an activation read it through a Q/DQ pair."""
        value = self._writer.values[name]
        scale, zero_point = self._parameters(leader, params)
        domain = self._domain_of(params.format)
        if self._domain == "auto" and self._trips_onnxruntime(value, params.format):
            domain = _MICROSOFT
        quantizer = self._node("QuantizeLinear", [value, scale, zero_point], name, params, domain)
        dequantizer = self._node(
            "DequantizeLinear", [quantizer.outputs[0], scale, zero_point], name, params, domain
        )
        self._writer.put_behind(value, [quantizer, dequantizer])

    def weight(self, name: str, params: QParams, make: Callable[[], NDArray[np.integer]]) -> None:
        """Store a constant as integers behind a DequantizeLinear."""
        value = self._writer.values[name]
        fmt = params.format
        stored = self._writer.lazy(
            f"{name}_quantized", value, _DTYPES[fmt], lambda taken: _tensor(make(), fmt, taken)
        )
        node = self._node(
            "DequantizeLinear", [stored, *self._parameters(name, params)], name, params
        )
        self._writer.read_through(value, tuple(value.uses()), [node])

    def bias(self, row: BiasPlan, params: QParams, codes: NDArray[np.integer]) -> None:
        """Store the bias of one node as integers behind a DequantizeLinear."""
        writer = self._writer
        value = writer.values[row.tensor]
        node = writer.nodes[row.node]
        shared = len(value.uses()) > 1
        name = f"{row.node}_bias" if shared else row.tensor
        stored = writer.constant(f"{name}_quantized", codes)
        scale = writer.constant(f"{name}_quantized_scale", params.scale)
        zero_point = writer.constant(f"{name}_quantized_zero_point", params.zero_point)
        if row.factor != 1.0:
            # The integers stand for the bias times this factor.
            node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
        dequantizer = self._node("DequantizeLinear", [stored, scale, zero_point], name, params)
        result = writer.read_through(value, ((node, row.index),), [dequantizer])
        result.shape = ir.Shape(codes.shape)

    def _node(
        self,
        op: str,
        inputs: list[ir.Value],
        name: str,
        params: QParams,
        domain: str | None = None,
    ) -> ir.Node:
        attributes = {} if params.axis is None else {"axis": params.axis}
        if params.group is not None:
            # Only the standard operator knows groups.
            attributes["block_size"], domain = params.group, ""
        domain = self._domain_of(params.format) if domain is None else domain
        return self._writer.node(op, inputs, f"{name}_{op}", attributes, domain)

    def _domain_of(self, fmt: IntegerFormat) -> str:
        if self._domain == "auto":
            wide = fmt.bits not in (8, 32)
            return _MICROSOFT if wide and self._writer.opset < _WIDE_OPSET else ""
        return "" if self._domain == "ai.onnx" else self._domain

    def _trips_onnxruntime(self, value: ir.Value, fmt: IntegerFormat) -> bool:
        """Whether onnxruntime's optimizer would make an invalid graph of a standard pair here.

        Up to 1.31 it moves a DequantizeLinear over a float Reshape, Transpose and the like; from
        opset 21 on the QuantizeLinear it leaves behind gets a zero point of the wrong type for
        signed formats, and the model no longer loads. It leaves pairs of its own domain alone.
        """
        if self._writer.opset < _WIDE_OPSET or not fmt.signed:
            return False
        return any(_moves_in_float(node, self._planned) for node in value.consumers())

    def _parameters(self, leader: str, params: QParams) -> tuple[ir.Value, ir.Value]:
        if leader not in self._scales:
            zero_point = self._writer.tensor(
                f"{leader}_zero_point",
                lambda name: _tensor(params.zero_point, params.format, name),
            )
            scale = self._writer.constant(f"{leader}_scale", params.scale)
            self._scales[leader] = (scale, zero_point)
        return self._scales[leader]


def _moves_in_float(node: ir.Node, planned: frozenset[str]) -> bool:
    traits = traits_of(node)
    if traits is None or traits.kind is not Kind.MOVES:
        return False
    return not any(output.name in planned for output in node.outputs)


_DTYPES = {
    IntegerFormat.INT4: ir.DataType.INT4,
    IntegerFormat.UINT4: ir.DataType.UINT4,
    IntegerFormat.INT8: ir.DataType.INT8,
    IntegerFormat.UINT8: ir.DataType.UINT8,
    IntegerFormat.INT16: ir.DataType.INT16,
    IntegerFormat.UINT16: ir.DataType.UINT16,
    IntegerFormat.INT32: ir.DataType.INT32,
}


def _tensor(data: NDArray[np.integer], fmt: IntegerFormat, name: str) -> ir.TensorProtocol:
    if fmt.bits == 4:
        import ml_dtypes

        data = data.astype(ml_dtypes.int4 if fmt.signed else ml_dtypes.uint4)
    return ir.Tensor(np.asarray(data), dtype=_DTYPES[fmt], name=name)
