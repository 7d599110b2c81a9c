"""The attributes by which AMD's operators know a block format: their names, defaults and meaning."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
import onnx_ir as ir

from lowbit.config.specs import BfpSpec, BlockSpec, MxSpec
from lowbit.errors import ConfigError, ModelError
from lowbit.numerics.blocks import Element, Rounding
from lowbit.ops.quantizing import OLDER_NAMES

_ROUNDINGS = (Rounding.AWAY, Rounding.UP, Rounding.EVEN)
_SUB_BLOCKS = (2, 1)

RoundingMode: TypeAlias = Literal[0, 1, 2]


class BfpAttributes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of block floating point."""

    bfp_method: Literal["to_bfp", "to_bfp_prime"] = "to_bfp"
    bit_width: int = 16
    axis: int = 1
    block_size: int = 8
    rounding_mode: RoundingMode = 0
    sub_block_size: int = 2
    sub_block_shift_bits: int = 1
    convert_to_bfloat_before_bfp: int = 0

    def spec(self) -> BfpSpec:
        """Return the format they mean; ``ConfigError`` for what there is no format of."""
        pairs = self.bfp_method == "to_bfp_prime"
        inside = (self.sub_block_size, self.sub_block_shift_bits)
        if pairs and inside != _SUB_BLOCKS:
            raise ConfigError(
                f"sub-blocks of {inside[0]}, {inside[1]} bits, are not known; of 2, 1 bit, are"
            )
        if self.convert_to_bfloat_before_bfp:
            raise ConfigError("convert_to_bfloat_before_bfp is not known")
        return BfpSpec(
            bits=self.bit_width,
            block=self.block_size,
            pairs=pairs,
            rounding=_ROUNDINGS[self.rounding_mode],
        )


class MxAttributes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of microscaling formats."""

    element_dtype: Element = Element.INT8
    axis: int = 1
    block_size: int = 32
    rounding_mode: RoundingMode = 0

    def spec(self) -> MxSpec:
        """Return the format they mean."""
        return MxSpec(
            element=self.element_dtype,
            block=self.block_size,
            rounding=_ROUNDINGS[self.rounding_mode],
        )


BlockAttributes: TypeAlias = BfpAttributes | MxAttributes

_BFP, _MX = "BFPQuantizeDequantize", "MXQuantizeDequantize"


def block_attributes(node: ir.Node) -> BlockAttributes:
    """Return the attributes of a node that rounds to blocks, under its older name too."""
    name = OLDER_NAMES.get(node.op_type, node.op_type)
    kind: type[BlockAttributes] = BfpAttributes if name == _BFP else MxAttributes
    known = kind.__struct_fields__
    given = {key: each.value for key, each in node.attributes.items() if key in known}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ModelError(f"{node.op_type} {node.name!r}: {error}") from error


def block_spec(node: ir.Node) -> BlockSpec:
    """Return the format that a node rounds to."""
    try:
        return block_attributes(node).spec()
    except ConfigError as error:
        raise ModelError(f"{node.op_type} {node.name!r}: {error}") from error


def block_operator(spec: BlockSpec, axis: int) -> tuple[str, dict[str, int | str]]:
    """Return the operator that rounds to a format along an axis, and its attributes."""
    rounding = _ROUNDINGS.index(spec.rounding)
    if isinstance(spec, MxSpec):
        mx = MxAttributes(
            element_dtype=spec.element,
            axis=axis,
            block_size=spec.block,
            rounding_mode=rounding,  # type: ignore[arg-type]  # a position in three
        )
        return _MX, msgspec.to_builtins(mx)
    bfp = BfpAttributes(
        bfp_method="to_bfp_prime" if spec.pairs else "to_bfp",
        bit_width=spec.bits,
        axis=axis,
        block_size=spec.block,
        rounding_mode=rounding,  # type: ignore[arg-type]  # a position in three
    )
    return _BFP, msgspec.to_builtins(bfp)
