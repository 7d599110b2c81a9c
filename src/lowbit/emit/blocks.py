"""Block formats in the graph: one named operator for each tensor, as AMD Quark has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from lowbit.config.specs import BfpSpec, BlockSpec
from lowbit.emit.block_functions import block_body
from lowbit.emit.functions import DOMAIN, Functions
from lowbit.emit.writer import Writer
from lowbit.numerics.blocks import Rounding
from lowbit.numerics.formats import Floats
from lowbit.plan.plan import TensorPlan

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
        self._writer.put_behind(value, [self._node(tensor, spec, value)])

    def weight(self, tensor: TensorPlan, spec: BlockSpec, make: Callable[[], Floats]) -> None:
        """Let all readers of a constant read it in blocks."""
        value = self._writer.values[tensor.name]
        uses = tuple(value.uses())
        self._writer.set_values(value, make)
        self._writer.read_through(value, uses, [self._node(tensor, spec, value)])

    def _node(self, tensor: TensorPlan, spec: BlockSpec, value: ir.Value) -> ir.Node:
        if tensor.axis is None:
            raise ValueError(f"the plan gives {tensor.name!r} blocks, but no axis for them")
        attributes = _attributes(spec, tensor.axis)
        name = "BFPQuantizeDequantize" if isinstance(spec, BfpSpec) else "MXQuantizeDequantize"
        signature = f"<{', '.join(attributes)}> (x) => (y)"
        overload = self._functions.define(name, signature, block_body(spec, self._writer.opset))
        return self._writer.node(
            name,
            [value],
            f"{tensor.name}_DequantizeLinear",
            attributes,
            domain=DOMAIN,
            overload=overload,
        )


def _attributes(spec: BlockSpec, axis: int) -> dict[str, int | str]:
    """Return the attributes by which AMD's operators know the format."""
    common = {"axis": axis, "block_size": spec.block, "rounding_mode": _ROUNDINGS[spec.rounding]}
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
