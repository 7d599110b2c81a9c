"""16-bit floats and block formats: Quark's types and attributes as lowbit's specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from lowbit.config.methods import Method, MinMax, Percentile
from lowbit.config.specs import BfpSpec, FloatSpec, MxSpec
from lowbit.numerics.blocks import Element, Rounding
from lowbit.numerics.float16 import FloatFormat
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.onnx.quantization.quant_utils import AnyQuantType

_FLOATS = {"QFloat16": FloatFormat.FLOAT16, "QBFloat16": FloatFormat.BFLOAT16}
_ROUNDING = {0: Rounding.AWAY, 1: Rounding.UP, 2: Rounding.EVEN}
_BLOCKS = ("QBFP", "QMX")


class BfpAttributes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attributes of Quark's block floating point, with its defaults."""

    bfp_method: Literal["to_bfp", "to_bfp_prime"] = "to_bfp"
    axis: int = 1
    bit_width: int = 16
    block_size: int = 8
    rounding_mode: Literal[0, 1, 2] = 0
    sub_block_size: int = 2
    sub_block_shift_bits: int = 1
    convert_to_bfloat_before_bfp: int = 0


class MxAttributes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attributes of Quark's microscaling formats, with its defaults."""

    element_dtype: Element = Element.INT8
    axis: int = 1
    block_size: int = 32
    rounding_mode: Literal[0, 1, 2] = 0


def is_float(kind: AnyQuantType) -> bool:
    """Whether a type is a 16-bit float."""
    return kind.name in _FLOATS


def is_block(kind: AnyQuantType) -> bool:
    """Whether a type is a block format."""
    return kind.name in _BLOCKS


def float_spec(kind: AnyQuantType, method: Method, *, scaled: bool) -> FloatSpec:
    """Return the spec of a 16-bit float; ``method`` finds the scale if there is one."""
    # bfloat16 reaches as far as float32 does; float16 does not.
    saturate = kind.name == "QFloat16"
    if not scaled:
        return FloatSpec(format=_FLOATS[kind.name], saturate=saturate)
    if not isinstance(method, (MinMax, Percentile)):
        raise QuarkConfigError(
            f"scaled {kind.name[1:]} is calibrated by MinMax or Percentile, "
            f"not by {type(method).__name__}"
        )
    return FloatSpec(format=_FLOATS[kind.name], scaled=True, saturate=saturate, method=method)


def block_spec(
    kind: AnyQuantType, bfp: Mapping[str, Any] | None, mx: Mapping[str, Any] | None
) -> BfpSpec | MxSpec:
    """Return the spec of a block format, with the attributes given for it."""
    if kind.name == "QBFP":
        return _bfp(_read("BFPAttributes", bfp, BfpAttributes))
    given = _read("MXAttributes", mx, MxAttributes)
    _usual_axis(given.axis)
    return MxSpec(
        element=given.element_dtype,
        block=given.block_size,
        rounding=_ROUNDING[given.rounding_mode],
    )


def _bfp(given: BfpAttributes) -> BfpSpec:
    _usual_axis(given.axis)
    pairs = given.bfp_method == "to_bfp_prime"
    if pairs and (given.sub_block_size, given.sub_block_shift_bits) != (2, 1):
        raise NotSupportedError("BFPAttributes: sub-blocks other than of 2, 1 bit are not built")
    if given.convert_to_bfloat_before_bfp:
        raise NotSupportedError("BFPAttributes: convert_to_bfloat_before_bfp is not built")
    return BfpSpec(
        bits=given.bit_width,
        block=given.block_size,
        pairs=pairs,
        rounding=_ROUNDING[given.rounding_mode],
    )


def _usual_axis(axis: int) -> None:
    if axis != 1:
        raise NotSupportedError(
            f"blocks along axis {axis} are not supported: they lie along channels, or along what "
            "a product sums up"
        )


def _read(name: str, given: Mapping[str, Any] | None, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(dict(given or {}), kind)
    except msgspec.ValidationError as error:
        raise QuarkConfigError(f"{name}: {error}") from error
