"""Write plan, parameters and integers into the graph as QuantizeLinear / DequantizeLinear.

Names are those onnxruntime's tools look for: ``T_scale``, ``T_QuantizeLinear_Output``,
``T_DequantizeLinear_Output``, ``W_quantized``. A graph output keeps its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.config.config import Domain
from lowbit.graph.constants import add_constant
from lowbit.graph.names import tensor_name
from lowbit.numerics.formats import Format
from lowbit.numerics.qparams import QParams
from lowbit.ops import Kind, traits_of
from lowbit.plan.plan import BiasPlan, Plan
from lowbit.resolve.integers import Weights
from lowbit.resolve.params import Params

_MICROSOFT = "com.microsoft"
# The standard Q/DQ take 16 and 4 bits from this operator set on.
_WIDE_OPSET = 21


def emit_qdq(
    model: ir.Model, plan: Plan, params: Params, weights: Weights, *, domain: Domain = "auto"
) -> ir.Model:
    """Return a copy of ``model`` in which every planned tensor passes through Q and DQ."""
    planned = frozenset(tensor.name for tensor in plan.activations())
    writer = _Writer(model.clone(), domain, planned)
    for tensor in plan.activations():
        writer.activation(tensor.name, tensor.leader, params.tensors[tensor.name])
    for row in plan.biases:
        writer.bias(row, params.biases[row.node], weights.biases[row.node])
    for tensor in plan.weights():
        writer.weight(tensor.name, params.tensors[tensor.name], weights.tensors[tensor.name])
    return writer.finish()


class _Writer:
    """Inserts nodes into one model, which it owns."""

    def __init__(self, model: ir.Model, domain: Domain, planned: frozenset[str]) -> None:
        self._model = model
        self._planned = planned
        self._graph = model.graph
        self._domain = domain
        self._opset = model.opset_imports[""]
        self._values = ir.convenience.create_value_mapping(self._graph)
        self._nodes = {node.name: node for node in self._graph}
        self._scales: dict[str, tuple[ir.Value, ir.Value]] = {}
        self._taken = {*self._values, *self._nodes}

    def activation(self, name: str, leader: str, params: QParams) -> None:
        """Let all readers of an activation read it through a Q/DQ pair."""
        value = self._values[name]
        scale, zero_point = self._parameters(leader, params)
        uses = tuple(value.uses())
        # An input that is an output as well stays what it is: both have the same name.
        is_output = value.is_graph_output() and value.producer() is not None
        domain = self._domain_of(params.format)
        if self._domain == "auto" and self._trips_onnxruntime(value, params.format):
            domain = _MICROSOFT
        quantizer = self._node("QuantizeLinear", [value, scale, zero_point], name, params, domain)
        dequantizer = self._node(
            "DequantizeLinear", [quantizer.outputs[0], scale, zero_point], name, params, domain
        )
        result = dequantizer.outputs[0]
        result.type, result.shape = value.type, value.shape
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], [quantizer, dequantizer])
        else:
            self._graph.insert_after(producer, [quantizer, dequantizer])
        for node, index in uses:
            node.replace_input_with(index, result)
        if is_output:
            self._replace_output(value, result)

    def weight(self, name: str, params: QParams, make: Callable[[], NDArray[np.integer]]) -> None:
        """Store a constant as integers behind a DequantizeLinear."""
        value = self._values[name]
        scale, zero_point = self._parameters(name, params)
        stored = self._lazy(f"{name}_quantized", value, params.format, make)
        self._read_through(value, tuple(value.uses()), stored, scale, zero_point, params, name)

    def bias(self, row: BiasPlan, params: QParams, codes: NDArray[np.integer]) -> None:
        """Store the bias of one node as integers behind a DequantizeLinear."""
        value = self._values[row.tensor]
        node = self._nodes[row.node]
        shared = len(value.uses()) > 1
        name = f"{row.node}_bias" if shared else row.tensor
        stored = self._constant(f"{name}_quantized", codes)
        scale = self._constant(f"{name}_quantized_scale", params.scale)
        zero_point = self._constant(f"{name}_quantized_zero_point", params.zero_point)
        if row.factor != 1.0:
            # The integers stand for the bias times this factor.
            node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
        uses = ((node, row.index),)
        result = self._read_through(value, uses, stored, scale, zero_point, params, name)
        result.shape = ir.Shape(codes.shape)

    def finish(self) -> ir.Model:
        """Sort, drop what is no longer read, and return the model."""
        for name, value in tuple(self._graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del self._graph.initializers[name]
        self._graph.sort()
        return self._model

    def _read_through(
        self,
        value: ir.Value,
        uses: Iterable[tuple[ir.Node, int]],
        stored: ir.Value,
        scale: ir.Value,
        zero_point: ir.Value,
        params: QParams,
        name: str,
    ) -> ir.Value:
        dequantizer = self._node("DequantizeLinear", [stored, scale, zero_point], name, params)
        dequantizer.outputs[0].type = value.type
        dequantizer.outputs[0].shape = value.shape
        self._graph.insert_before(self._graph[0], dequantizer)
        for node, index in uses:
            node.replace_input_with(index, dequantizer.outputs[0])
        return dequantizer.outputs[0]

    def _node(
        self,
        op: str,
        inputs: list[ir.Value],
        name: str,
        params: QParams,
        domain: str | None = None,
    ) -> ir.Node:
        attributes = {} if params.axis is None else {"axis": params.axis}
        domain = self._domain_of(params.format) if domain is None else domain
        if domain:
            self._model.opset_imports.setdefault(domain, 1)
        node = ir.node(op, inputs, attributes, domain=domain, name=self._free(f"{name}_{op}"))
        node.outputs[0].name = self._free(f"{name}_{op}_Output")
        return node

    def _free(self, name: str) -> str:
        """Return a name that nothing in the graph has, and take it."""
        candidate, count = name, 0
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate

    def _domain_of(self, fmt: Format) -> str:
        if self._domain == "auto":
            wide = fmt.bits not in (8, 32)
            return _MICROSOFT if wide and self._opset < _WIDE_OPSET else ""
        return "" if self._domain == "ai.onnx" else self._domain

    def _trips_onnxruntime(self, value: ir.Value, fmt: Format) -> bool:
        """Whether onnxruntime's optimizer would make an invalid graph of a standard pair here.

        Up to 1.31 it moves a DequantizeLinear over a float Reshape, Transpose and the like; from
        opset 21 on the QuantizeLinear it leaves behind gets a zero point of the wrong type for
        signed formats, and the model no longer loads. It leaves pairs of its own domain alone.
        """
        if self._opset < _WIDE_OPSET or not fmt.signed:
            return False
        return any(_moves_in_float(node, self._planned) for node in value.consumers())

    def _parameters(self, leader: str, params: QParams) -> tuple[ir.Value, ir.Value]:
        if leader not in self._scales:
            self._scales[leader] = (
                self._constant(f"{leader}_scale", params.scale),
                self._integer_constant(f"{leader}_zero_point", params.zero_point, params.format),
            )
        return self._scales[leader]

    def _constant(self, name: str, data: NDArray[np.generic]) -> ir.Value:
        return add_constant(self._graph, self._free(name), np.asarray(data))

    def _integer_constant(self, name: str, data: NDArray[np.integer], fmt: Format) -> ir.Value:
        name = self._free(name)
        return add_constant(self._graph, name, _tensor(data, fmt, name))

    def _lazy(
        self, name: str, like: ir.Value, fmt: Format, make: Callable[[], NDArray[np.integer]]
    ) -> ir.Value:
        if like.shape is None:
            raise ValueError(f"constant {like.name!r} has no shape")
        name = self._free(name)
        lazy = ir.LazyTensor(
            lambda: _tensor(make(), fmt, name), dtype=_DTYPES[fmt], shape=like.shape, name=name
        )
        return add_constant(self._graph, name, lazy)

    def _replace_output(self, value: ir.Value, result: ir.Value) -> None:
        """Let the graph output keep its name: what is quantized gets another."""
        name = tensor_name(value)
        for index, output in enumerate(self._graph.outputs):
            if output is value:
                self._graph.outputs[index] = result
        value.name = self._free(f"{name}_QuantizeLinear_Input")
        result.name = name


def _moves_in_float(node: ir.Node, planned: frozenset[str]) -> bool:
    traits = traits_of(node)
    if traits is None or traits.kind is not Kind.MOVES:
        return False
    return not any(output.name in planned for output in node.outputs)


_DTYPES = {
    Format.INT4: ir.DataType.INT4,
    Format.UINT4: ir.DataType.UINT4,
    Format.INT8: ir.DataType.INT8,
    Format.UINT8: ir.DataType.UINT8,
    Format.INT16: ir.DataType.INT16,
    Format.UINT16: ir.DataType.UINT16,
    Format.INT32: ir.DataType.INT32,
}


def _tensor(data: NDArray[np.integer], fmt: Format, name: str) -> ir.TensorProtocol:
    if fmt.bits == 4:
        import ml_dtypes

        data = data.astype(ml_dtypes.int4 if fmt.signed else ml_dtypes.uint4)
    return ir.Tensor(np.asarray(data), dtype=_DTYPES[fmt], name=name)
