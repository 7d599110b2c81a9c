"""Small floats in the graph: 16 bits as AMD's named operators or as pairs of Cast, 8 bits as standard Q/DQ.

A tensor of 16 bits passes through ``ExtendedQuantizeLinear`` and ``ExtendedDequantizeLinear``, or through a
Cast to the format and one back, with factors around them if it is scaled. Constants go the same
way as they are, or are stored in the format, which takes half the space; in 8 bits they always are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.config.specs import FloatSpec
from lowbit.emit.emission import Emission, EmittedTensor
from lowbit.emit.functions import PAIR, number
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import FloatArray, FloatFormat, as_stored
from lowbit.planning.plan import TensorPlan

_DTYPES = {
    FloatFormat.BFLOAT16: ir.DataType.BFLOAT16,
    FloatFormat.FLOAT16: ir.DataType.FLOAT16,
    FloatFormat.FLOAT8E4M3FN: ir.DataType.FLOAT8E4M3FN,
    FloatFormat.FLOAT8E5M2: ir.DataType.FLOAT8E5M2,
}
_FLOAT = int(ir.DataType.FLOAT)


class Conversion(Protocol):
    """The conversion of a tensor to the format and back, written in one form."""

    def down(self, tensor: TensorPlan, spec: FloatSpec, value: ir.Value) -> list[ir.Node]:
        """Return the nodes that bring a value to the format."""

    def up(self, tensor: TensorPlan, spec: FloatSpec, value: ir.Value) -> list[ir.Node]:
        """Return the nodes that bring it back to float32."""


class FloatNodes:
    """Writes tensors in small floats."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._scales = context.params.scales
        self._stored = context.options.half_weights
        kind = CastPairs if context.options.casts else NamedOperators
        self._wide: Conversion = kind(context)
        self._narrow: Conversion = StandardOperators(context)

    def activation(self, tensor: TensorPlan) -> EmittedTensor:
        """Make all consumers of an activation read it through the format."""
        spec = _float_spec(tensor)
        value = self._editor.values[tensor.name]
        conversion = self._conversion(spec)
        down = conversion.down(tensor, spec, value)
        up = conversion.up(tensor, spec, down[-1].outputs[0])
        self._editor.put_after(value, [*down, *up], tensor.consumers)
        return EmittedTensor(tensor_name(down[-1].outputs[0]), tensor_name(up[-1].outputs[0]))

    def weight(self, tensor: TensorPlan, make: Callable[[], FloatArray]) -> EmittedTensor:
        """Make all consumers of a constant read it through the format."""
        spec = _float_spec(tensor)
        value = self._editor.values[tensor.name]
        uses = tuple(value.uses())
        conversion = self._conversion(spec)
        if self._stored or spec.format.bits == 8:
            scale = self._scales.get(tensor.name, 1.0)
            stored = self._editor.lazy(
                f"{tensor.name}_quantized",
                value,
                _DTYPES[spec.format],
                lambda name: _tensor(as_stored(make(), spec.format, scale), spec.format, name),
            )
            nodes = conversion.up(tensor, spec, stored)
        else:
            stored = value
            self._editor.set_values(value, make)
            nodes = conversion.down(tensor, spec, value)
            nodes += conversion.up(tensor, spec, nodes[-1].outputs[0])
        result = self._editor.read_through(value, uses, nodes)
        return EmittedTensor(tensor_name(stored), tensor_name(result))

    def _conversion(self, spec: FloatSpec) -> Conversion:
        return self._narrow if spec.format.bits == 8 else self._wide


def _float_spec(tensor: TensorPlan) -> FloatSpec:
    if not isinstance(tensor.spec, FloatSpec):
        raise TypeError(f"{tensor.name!r} is {tensor.spec.describe()}, not a small float")
    return tensor.spec


class NamedOperators:
    """``com.amd.quark``'s ExtendedQuantizeLinear and ExtendedDequantizeLinear."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._functions = context.functions
        self._parameters = _Parameters(context)

    def down(self, tensor: TensorPlan, spec: FloatSpec, value: ir.Value) -> list[ir.Node]:
        """Return one node."""
        last, steps = "x", []
        if spec.scaled:
            last, steps = "a", ["a = Div(x, scale)"]
        if _saturates(tensor, spec):
            largest = spec.format.largest
            steps += [f"low = {number(-largest)}", f"high = {number(largest)}"]
            steps += [f"b = Clip({last}, low, high)"]
            last = "b"
        steps.append(f"y = Cast <to = {int(_DTYPES[spec.format])}> ({last})")
        return [self._node("QuantizeLinear", tensor, spec, value, steps)]

    def up(self, tensor: TensorPlan, spec: FloatSpec, value: ir.Value) -> list[ir.Node]:
        """Return one node."""
        steps = [f"y = Cast <to = {_FLOAT}> (x)"]
        if spec.scaled:
            steps = [f"a = Cast <to = {_FLOAT}> (x)", "y = Mul(a, scale)"]
        return [self._node("DequantizeLinear", tensor, spec, value, steps)]

    def _node(
        self, op: str, tensor: TensorPlan, spec: FloatSpec, value: ir.Value, steps: list[str]
    ) -> ir.Node:
        name = f"Extended{op}"
        call = self._functions.define(name, PAIR, "\n".join(steps))
        inputs = [value, *self._parameters.of(tensor.leader, spec)]
        return self._editor.node(name, inputs, f"{tensor.name}_{op}", domain=call.domain)


class StandardOperators:
    """QuantizeLinear and DequantizeLinear, whose zero point says which of the 8-bit floats it is."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._parameters = _Parameters(context)

    def down(self, tensor: TensorPlan, spec: FloatSpec, value: ir.Value) -> list[ir.Node]:
        """Return one node; it saturates."""
        return [self._node("QuantizeLinear", tensor, spec, value)]

    def up(self, tensor: TensorPlan, spec: FloatSpec, value: ir.Value) -> list[ir.Node]:
        """Return one node."""
        return [self._node("DequantizeLinear", tensor, spec, value)]

    def _node(self, op: str, tensor: TensorPlan, spec: FloatSpec, value: ir.Value) -> ir.Node:
        inputs = [value, *self._parameters.of(tensor.leader, spec)]
        return self._editor.node(op, inputs, f"{tensor.name}_{op}")


class _Parameters:
    """The scale and the zero point of each leader, written once."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._scales = context.params.scales
        self._known: dict[str, list[ir.Value]] = {}

    def of(self, leader: str, spec: FloatSpec) -> list[ir.Value]:
        """Return both."""
        if leader not in self._known:
            scale = np.asarray(self._scales.get(leader, 1.0), np.float32)
            zero = np.zeros((), spec.format.dtype)
            self._known[leader] = [
                self._editor.constant(f"{leader}_scale", scale),
                self._editor.tensor(
                    f"{leader}_zero_point", lambda name: _tensor(zero, spec.format, name)
                ),
            ]
        return self._known[leader]


class CastPairs:
    """A Cast to the format and one back, with Mul around them if the tensor is scaled."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._scales = context.params.scales

    def down(self, tensor: TensorPlan, spec: FloatSpec, value: ir.Value) -> list[ir.Node]:
        """Return Mul if scaled, Clip if saturating, and Cast."""
        nodes: list[ir.Node] = []
        name = f"{tensor.name}_QuantizeLinear"
        if spec.scaled:
            factor = np.float32(1) / np.float32(self._scales[tensor.name])
            nodes.append(self._mul(value, f"{name}_mul", factor))
        if _saturates(tensor, spec):
            source = nodes[-1].outputs[0] if nodes else value
            bounds = [
                self._editor.constant(f"{name}_{word}", np.asarray(bound, np.float32))
                for word, bound in (("min", -spec.format.largest), ("max", spec.format.largest))
            ]
            nodes.append(self._editor.node("Clip", [source, *bounds], f"{name}_clip"))
        source = nodes[-1].outputs[0] if nodes else value
        to = {"to": int(_DTYPES[spec.format])}
        return [*nodes, self._editor.node("Cast", [source], name, to)]

    def up(self, tensor: TensorPlan, spec: FloatSpec, value: ir.Value) -> list[ir.Node]:
        """Return Cast, and Mul if scaled."""
        name = f"{tensor.name}_DequantizeLinear"
        if not spec.scaled:
            return [self._editor.node("Cast", [value], name, {"to": _FLOAT})]
        cast = self._editor.node("Cast", [value], f"{name}_cast", {"to": _FLOAT})
        scale = np.float32(self._scales[tensor.name])
        return [cast, self._mul(cast.outputs[0], name, scale)]

    def _mul(self, value: ir.Value, name: str, factor: np.float32) -> ir.Node:
        constant = self._editor.constant(f"{name}_scale", np.asarray(factor))
        return self._editor.node("Mul", [value, constant], name)


def _saturates(tensor: TensorPlan, spec: FloatSpec) -> bool:
    """Whether finite values must be kept finite here: constants are so beforehand."""
    return spec.saturate and tensor.role == "activation"


def _tensor(data: NDArray[Any], fmt: FloatFormat, name: str) -> ir.TensorProtocol:
    return ir.Tensor(data, dtype=_DTYPES[fmt], name=name)
