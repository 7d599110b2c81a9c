"""Block formats in the graph: one named operator for each tensor, as AMD Quark has it.

Constants are stored as the values of the format: the operator behind them, which says in what format
they are, has nothing left to do, and rounding them once more changes nothing. Not so in MXINT8 where
a code is -128: that is a power of two of the next exponent, with which rounding would be coarser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lowbit.config.specs import BfpSpec, BlockSpec, MxSpec
from lowbit.emit.block_functions import STORED, block_body, block_shape
from lowbit.emit.functions import DOMAIN, Functions
from lowbit.emit.writer import Attributes, Writer
from lowbit.numerics.blocks import Element, Rounding
from lowbit.numerics.formats import FloatArray
from lowbit.planning.plan import TensorPlan
from lowbit.scales.floats import rounded_values

_ROUNDINGS: Mapping[Rounding, int] = MappingProxyType(
    {Rounding.AWAY: 0, Rounding.UP: 1, Rounding.EVEN: 2}
)


class BlockNodes:
    """Writes tensors in block formats."""

    def __init__(self, writer: Writer, functions: Functions) -> None:
        self._writer = writer
        self._functions = functions

    def activation(self, tensor: TensorPlan, spec: BlockSpec) -> None:
        """Let all readers of an activation read it in blocks."""
        value = self._writer.values[tensor.name]
        self._writer.put_behind(value, [self._rounding(tensor, spec, value)])

    def weight(self, tensor: TensorPlan, spec: BlockSpec, make: Callable[[], FloatArray]) -> None:
        """Let all readers of a constant read it in blocks."""
        value = self._writer.values[tensor.name]
        uses = tuple(value.uses())
        if not _stays(tensor, spec, make):
            self._writer.set_values(value, make)
            node = self._rounding(tensor, spec, value)
        else:
            self._writer.set_values(value, lambda: rounded_values(make(), tensor))
            node = self._node(tensor, spec, value, _attributes(spec, _axis(tensor)), STORED)
        self._writer.read_through(value, uses, [node])

    def _rounding(self, tensor: TensorPlan, spec: BlockSpec, value: ir.Value) -> ir.Node:
        axis = _axis(tensor)
        attributes = _attributes(spec, axis)
        shape = _whole_blocks(spec, axis, value)
        if shape is not None:
            attributes = {**attributes, "block_shape": shape}
        body = block_body(spec, self._writer.opset, whole=shape is not None)
        return self._node(tensor, spec, value, attributes, body)

    def _node(
        self,
        tensor: TensorPlan,
        spec: BlockSpec,
        value: ir.Value,
        attributes: Attributes,
        body: str,
    ) -> ir.Node:
        name = "BFPQuantizeDequantize" if isinstance(spec, BfpSpec) else "MXQuantizeDequantize"
        overload = self._functions.define(name, f"<{', '.join(attributes)}> (x) => (y)", body)
        return self._writer.node(
            name,
            [value],
            f"{tensor.name}_DequantizeLinear",
            attributes,
            domain=DOMAIN,
            overload=overload,
        )


def _stays(tensor: TensorPlan, spec: BlockSpec, make: Callable[[], FloatArray]) -> bool:
    """Whether rounding the constant a second time changes nothing."""
    if not (isinstance(spec, MxSpec) and spec.element is Element.INT8):
        return True
    once = rounded_values(make(), tensor)
    return bool(np.array_equal(rounded_values(once, tensor), once))


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


def _attributes(spec: BlockSpec, axis: int) -> Attributes:
    """Return the attributes by which AMD's operators know the format."""
    common: Attributes = {
        "axis": axis,
        "block_size": spec.block,
        "rounding_mode": _ROUNDINGS[spec.rounding],
    }
    if not isinstance(spec, BfpSpec):
        return {"element_dtype": spec.element.value, **common}
    return {
        "bfp_method": "to_bfp_prime" if spec.pairs else "to_bfp",
        "bit_width": spec.bits,
        **common,
        "sub_block_size": 2,
        "sub_block_shift_bits": 1,
        "convert_to_bfloat_before_bfp": 0,
    }
