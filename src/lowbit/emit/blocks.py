"""Block formats in the graph: one named operator for each tensor, which AMD's tools know.

Constants are stored as the values of the format: the operator after them, which says in what format
they are, has nothing left to do, and rounding them once more changes nothing. Not so in MXINT8 where
a code is -128: that is a power of two of the next exponent, with which rounding would be coarser.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lowbit.config.specs import BfpSpec, BlockSpec, MxSpec
from lowbit.emit.emission import Emission, EmittedTensor
from lowbit.emit.functions import STORED, block_body, block_shape
from lowbit.graph.editing import Attributes
from lowbit.graph.naming import tensor_name
from lowbit.numerics.blocks import Element
from lowbit.numerics.formats import FloatArray
from lowbit.ops.block_attributes import block_operator
from lowbit.planning.plan import TensorPlan
from lowbit.scales.formats import rounded_values


class BlockNodes:
    """Writes tensors in block formats."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._functions = context.functions

    def activation(self, tensor: TensorPlan) -> EmittedTensor:
        """Make all consumers of an activation read it in blocks."""
        value = self._editor.values[tensor.name]
        node = self._rounding(tensor, value)
        self._editor.put_after(value, [node], tensor.consumers)
        return EmittedTensor(None, tensor_name(node.outputs[0]))

    def weight(self, tensor: TensorPlan, make: Callable[[], FloatArray]) -> EmittedTensor:
        """Make all consumers of a constant read it in blocks."""
        value = self._editor.values[tensor.name]
        uses = tuple(value.uses())
        if not _stays(tensor, make):
            self._editor.set_values(value, make)
            node = self._rounding(tensor, value)
        else:
            self._editor.set_values(value, lambda: rounded_values(make(), tensor.spec, tensor.axis))
            node = self._node(tensor, value, STORED)
        result = self._editor.read_through(value, uses, [node])
        return EmittedTensor(tensor_name(value), tensor_name(result))

    def _rounding(self, tensor: TensorPlan, value: ir.Value) -> ir.Node:
        spec = _block_spec(tensor)
        shape = _whole_blocks(spec, _axis(tensor), value)
        body = block_body(spec, self._editor.opset, whole=shape is not None)
        return self._node(tensor, value, body, {} if shape is None else {"block_shape": shape})

    def _node(
        self,
        tensor: TensorPlan,
        value: ir.Value,
        body: str,
        more: Attributes = MappingProxyType({}),
    ) -> ir.Node:
        spec = _block_spec(tensor)
        name, known = block_operator(spec, _axis(tensor))
        attributes: Attributes = {**known, **more}
        call = self._functions.define(
            name,
            f"<{', '.join(attributes)}> (x) => (y)",
            body,
            general=block_body(spec, self._editor.opset),
        )
        made = f"{tensor.name}_DequantizeLinear"
        return self._editor.node(name, [value], made, attributes, call.domain, call.overload)


def _block_spec(tensor: TensorPlan) -> BlockSpec:
    if not isinstance(tensor.spec, (BfpSpec, MxSpec)):
        raise TypeError(f"{tensor.name!r} is {tensor.spec.describe()}, not in blocks")
    return tensor.spec


def _stays(tensor: TensorPlan, make: Callable[[], FloatArray]) -> bool:
    """Whether rounding the constant a second time changes nothing."""
    spec = tensor.spec
    if not (isinstance(spec, MxSpec) and spec.element is Element.INT8):
        return True
    once = rounded_values(make(), spec, tensor.axis)
    return bool(np.array_equal(rounded_values(once, spec, tensor.axis), once))


def _axis(tensor: TensorPlan) -> int:
    if tensor.axis is None:
        raise ValueError(f"the plan gives {tensor.name!r} blocks, but no axis for them")
    return tensor.axis


def _whole_blocks(spec: BlockSpec, axis: int, value: ir.Value) -> list[int] | None:
    """Return the shape that cuts the value into blocks, if it is known to be cut evenly."""
    if value.shape is None:
        return None
    rank = value.shape.rank()
    length = value.shape[axis]
    return block_shape(spec, axis % rank, rank, length) if isinstance(length, int) else None
