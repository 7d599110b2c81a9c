"""Operators that AMD's tools know by name, defined in the file itself as ONNX functions.

So a model runs in any onnxruntime, without AMD's compiled library, and where the name is known, it is
recognized. Bodies are written in ONNX's text syntax, in standard operators: exact, and valid for any
shape.

A tensor in blocks is seen as [..., blocks, size of a block, inner]. Where the length along the axis is
known and a multiple of a block, that shape is an attribute of the node; otherwise the body computes it
and puts zeros after the last block.

The shared scale is a power of two below the largest number t of a block, found with nothing but
correctly rounded sums and products: in double precision, splitting a number by the factor 2**52 + 1
(Veltkamp) rounds it to one bit. Three quarters of t, and a little more, are rounded to the power of
two at or below t, whatever t is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.config.specs import BlockSpec, MxSpec
from lowbit.graph.editing import GraphEditor
from lowbit.numerics.blocks import MINIFLOATS, Element, Minifloat, Rounding
from lowbit.ops.quantizing import AMD_DOMAIN

PAIR = "(x, scale, zero_point) => (y)"
"""The signature of the two operators of a Q/DQ pair."""

_OVERLOADS_FROM_IR_VERSION = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """How a node selects one of several function bodies of one name."""

    domain: str
    overload: str


class Functions:
    """The functions of one model, added when they are first used."""

    def __init__(self, editor: GraphEditor) -> None:
        self._model = editor.model
        self._opset = editor.opset
        self._calls: dict[tuple[str, str], dict[str, Call]] = {}

    def define(self, name: str, signature: str, body: str, general: str = "") -> Call:
        """Make sure that ``name`` with this body is defined, and return how a node calls it.

        ``general`` is a body that gives the same, in more steps. Bodies that have it in common are
        overloads of each other, and it is the last of them: up to 1.26, onnxruntime runs the last
        one for all. Any other body of the name is in a domain of its own.
        """
        general = general or body
        family = self._calls.setdefault((name, general), {})
        for each in (body, general):
            if each not in family:
                family[each] = self._add(name, signature, each, family)
        last = family[general]
        functions = self._model.functions
        functions[last.domain, name, last.overload] = functions.pop(
            (last.domain, name, last.overload)
        )
        return family[body]

    def _add(self, name: str, signature: str, body: str, family: Mapping[str, Call]) -> Call:
        number = sum(known == name for known, _ in self._calls)
        domain = AMD_DOMAIN if number == 1 else f"{AMD_DOMAIN}.v{number}"
        call = next(iter(family.values()), Call(domain, ""))
        if family:
            call = Call(call.domain, f"v{len(family) + 1}")
            self._model.ir_version = max(self._model.ir_version, _OVERLOADS_FROM_IR_VERSION)
        text = (
            f'<ir_version: 8, opset_import: ["" : {self._opset}]> unused (float x) => (float y) '
            f'{{ y = Identity(x) }} <domain: "{call.domain}", opset_import: ["" : {self._opset}]> '
            f"{name} {signature} {{ {body} }}"
        )
        (parsed,) = ir.from_onnx_text(text).functions.values()
        function = ir.Function(
            call.domain, name, call.overload, graph=parsed.graph, attributes=parsed.attributes
        )
        self._model.functions[function.identifier()] = function
        self._model.opset_imports.setdefault(call.domain, 1)
        return call


def number(value: float) -> str:
    """Return a float32 constant in ONNX's text syntax.

    Raises:
        ValueError: It is below the least normal number; onnx reads no such number up to 1.22.
    """
    if 0 < abs(value) < np.finfo(np.float32).tiny:
        raise ValueError(f"{value!r} is below the least normal float32; such numbers are not read")
    return f"Constant <value = float {{{value!r}}}> ()"


def quantize_body(kind: ir.DataType, spread: Sequence[int] = ()) -> str:
    """Return the body of a function that rounds ``x`` to integers, by ``scale`` and ``zero_point``.

    ``spread`` is the shape that brings scales per channel to their axis.
    """
    limits = np.iinfo(kind.numpy())
    # In double precision, so that 32 bits and their limits are exact.
    return "\n".join(
        [
            f"wide = Cast <to = {_DOUBLE}> (x)",
            *_parameters(spread),
            "share = Div(wide, step)",
            "near = Round(share)",
            "moved = Add(near, point)",
            f"low = Constant <value = double {{{float(limits.min)!r}}}> ()",
            f"high = Constant <value = double {{{float(limits.max)!r}}}> ()",
            "inside = Clip(moved, low, high)",
            f"y = Cast <to = {int(kind)}> (inside)",
        ]
    )


def dequantize_body(spread: Sequence[int] = ()) -> str:
    """Return the body of a function from integers ``x`` back to float."""
    return "\n".join(
        [
            f"codes = Cast <to = {_DOUBLE}> (x)",
            *_parameters(spread),
            "moved = Sub(codes, point)",
            "wide = Mul(moved, step)",
            f"y = Cast <to = {_FLOAT}> (wide)",
        ]
    )


def _parameters(spread: Sequence[int]) -> list[str]:
    """Return the steps to ``step`` and ``point``, in double precision."""
    if not spread:
        return [
            f"step = Cast <to = {_DOUBLE}> (scale)",
            f"point = Cast <to = {_DOUBLE}> (zero_point)",
        ]
    words = ", ".join(str(n) for n in spread)
    return [
        f"spread = Constant <value_ints = [{words}]> ()",
        "scales = Reshape(scale, spread)",
        "points = Reshape(zero_point, spread)",
        f"step = Cast <to = {_DOUBLE}> (scales)",
        f"point = Cast <to = {_DOUBLE}> (points)",
    ]


def spread_along(axis: int, rank: int) -> list[int]:
    """Return the shape that makes one number for each channel broadcast along an axis."""
    return [-1 if at == axis % rank else 1 for at in range(rank)]


# Operators that take their axes as an input, not as an attribute, from this operator set on.
_AXES_AS_INPUT = 18
_LARGEST = 3.4028234663852886e38
_LOWEST_BINADE = 2.0**-127
_THREE_QUARTERS = 0.75 * (1 + 2.0**-30)
_FLOAT, _DOUBLE = int(ir.DataType.FLOAT), int(ir.DataType.DOUBLE)
STORED = "y = Identity(x)"
"""The body for constants that hold values of the format already."""


def block_shape(spec: BlockSpec, axis: int, rank: int, length: int) -> list[int] | None:
    """Return the shape that cuts a tensor into whole blocks, or ``None`` if they are not whole."""
    if length % spec.block:
        return None
    before, inner = [0] * axis, 1 if axis == rank - 1 else -1
    return [*before, length // spec.block, *_inside(spec), inner]


def block_body(spec: BlockSpec, opset: int, *, whole: bool = False) -> str:
    """Return the body of a function of ``x`` that gives ``y``.

    It reads the attribute ``block_shape`` if blocks are ``whole``, otherwise ``axis``.
    """
    inside = _inside(spec)
    cut, join = (_cut_whole(), _join_whole()) if whole else (_cut(spec.block, inside), _join())
    steps = [*cut, *_sizes()]
    steps += _largest("top", [-3, -2] if len(inside) > 1 else [-2], opset)
    if isinstance(spec, MxSpec) and spec.element is not Element.INT8:
        steps += _minifloats(MINIFLOATS[spec.element])
    else:
        steps += _integers(spec, opset)
    return "\n".join([*steps, "kept = Where(is_finite, rounded, blocks)", *join])


def _inside(spec: BlockSpec) -> list[int]:
    """Return the dimensions of one block."""
    return [spec.block // 2, 2] if spec.pairs else [spec.block]


def _integers(spec: BlockSpec, opset: int) -> list[str]:
    """Return the steps from ``blocks`` and ``top`` to ``rounded``, integers times a step."""
    low, high = spec.integers
    bits = high.bit_length()
    steps, step = _binade("top", "step", 2.0 ** (1 - bits)), "step"
    if spec.pairs:
        step = "own_step"
        steps += [
            *_largest("pair", [-2], opset),
            f"fraction = {number(2.0 ** (1 - bits))}",
            "pair_step = Mul(pair, fraction)",
            "finer = Less(pair_step, step)",
            f"half = {number(0.5)}",
            "fine_step = Mul(step, half)",
            "own_step = Where(finer, fine_step, step)",
        ]
    return [
        *steps,
        f"scaled = Div(blocks, {step})",
        *_round("scaled", "integers", spec.rounding),
        f"low = {number(float(low))}",
        f"high = {number(float(high))}",
        "codes = Clip(integers, low, high)",
        f"rounded = Mul(codes, {step})",
    ]


def _minifloats(small: Minifloat) -> list[str]:
    """Return the steps from ``blocks`` and ``top`` to ``rounded``: each has its own exponent."""
    return [
        *_binade("top", "scale", 2.0**-small.emax),
        "scaled = Div(blocks, scale)",
        "magnitude = Abs(scaled)",
        *_binade("magnitude", "own_step", 2.0**-small.mantissa, lowest=2.0**small.emin),
        "steps = Div(scaled, own_step)",
        "integers = Round(steps)",
        "element = Mul(integers, own_step)",
        f"low = {number(-small.largest)}",
        f"high = {number(small.largest)}",
        "codes = Clip(element, low, high)",
        "rounded = Mul(codes, scale)",
    ]


def _cut_whole() -> list[str]:
    return [
        "block_shape = Constant <value_ints: ints = @block_shape> ()",
        "blocks = Reshape(x, block_shape)",
    ]


def _join_whole() -> list[str]:
    return ["shape = Shape(x)", "y = Reshape(kept, shape)"]


def _cut(size: int, inside: list[int]) -> list[str]:
    """Return the steps from ``x`` to ``blocks``."""
    words = ", ".join(str(n) for n in (-1, *inside))
    return [
        "zero = Constant <value_ints = [0]> ()",
        "one = Constant <value_ints = [1]> ()",
        "end = Constant <value_ints = [9223372036854775807]> ()",
        f"size = Constant <value_ints = [{size}]> ()",
        f"inside = Constant <value_ints = [{words}]> ()",
        "axis_number = Constant <value_int: int = @axis> ()",
        "given_axis = Unsqueeze(axis_number, zero)",
        "shape = Shape(x)",
        "rank = Shape(shape)",
        "from_front = Add(given_axis, rank)",
        "first = Mod(from_front, rank)",
        "next = Add(first, one)",
        "before = Slice(shape, zero, first)",
        "length = Slice(shape, first, next)",
        "after = Slice(shape, next, end)",
        "outer = ReduceProd <keepdims = 1> (before)",
        "inner = ReduceProd <keepdims = 1> (after)",
        "minus_length = Neg(length)",
        "missing = Mod(minus_length, size)",
        "flat_shape = Concat <axis = 0> (outer, length, inner)",
        "flat = Reshape(x, flat_shape)",
        "padding = Concat <axis = 0> (zero, zero, zero, zero, missing, zero)",
        "padded = Pad(flat, padding)",
        "block_shape = Concat <axis = 0> (outer, inside, inner)",
        "blocks = Reshape(padded, block_shape)",
    ]


def _join() -> list[str]:
    """Return the steps from ``kept`` to ``y``, without the zeros that were put after it."""
    return [
        "whole_length = Add(length, missing)",
        "long_shape = Concat <axis = 0> (outer, whole_length, inner)",
        "long = Reshape(kept, long_shape)",
        "cut = Slice(long, zero, length, one)",
        "y = Reshape(cut, shape)",
    ]


def _sizes() -> list[str]:
    """Return the steps to ``sizes``: magnitudes, with zeros for what is not finite."""
    return [
        "magnitudes = Abs(blocks)",
        f"largest = {number(_LARGEST)}",
        "is_finite = LessOrEqual(magnitudes, largest)",
        f"nothing = {number(0.0)}",
        "sizes = Where(is_finite, magnitudes, nothing)",
    ]


def _binade(
    source: str, target: str, factor: float, *, lowest: float = _LOWEST_BINADE
) -> list[str]:
    """Return the steps to the power of two at or below each number, times a power of two."""

    def double(value: float) -> str:
        return f"Constant <value = double {{{value!r}}}> ()"

    name = target
    return [
        f"{name}_wide = Cast <to = {_DOUBLE}> ({source})",
        f"{name}_share = {double(_THREE_QUARTERS * factor)}",
        f"{name}_part = Mul({name}_wide, {name}_share)",
        f"{name}_split = {double(2.0**52 + 1)}",
        f"{name}_product = Mul({name}_part, {name}_split)",
        f"{name}_rest = Sub({name}_product, {name}_part)",
        f"{name}_power = Sub({name}_product, {name}_rest)",
        f"{name}_lowest = {double(lowest * factor)}",
        f"{name}_bounded = Max({name}_power, {name}_lowest)",
        f"{name} = Cast <to = 1> ({name}_bounded)",
    ]


def _round(source: str, target: str, rounding: Rounding) -> list[str]:
    if rounding is Rounding.EVEN:
        return [f"{target} = Round({source})"]
    # Away from zero is upwards for magnitudes.
    steps, inner = [f"sign = {number(1.0)}"], source
    if rounding is Rounding.AWAY:
        steps, inner = [f"sign = Sign({source})", f"unsigned = Abs({source})"], "unsigned"
    return [
        *steps,
        f"floor = Floor({inner})",
        f"over = Sub({inner}, floor)",
        f"one_half = {number(0.5)}",
        "goes_up = GreaterOrEqual(over, one_half)",
        "carry = Cast <to = 1> (goes_up)",
        "upper = Add(floor, carry)",
        f"{target} = Mul(upper, sign)",
    ]


def _largest(target: str, axes: list[int], opset: int) -> list[str]:
    """Return the steps to the largest of ``sizes`` along some axes."""
    words = ", ".join(str(axis) for axis in axes)
    if opset < _AXES_AS_INPUT:
        return [f"{target} = ReduceMax <keepdims = 1, axes = [{words}]> (sizes)"]
    return [
        f"{target}_axes = Constant <value_ints = [{words}]> ()",
        f"{target} = ReduceMax <keepdims = 1> (sizes, {target}_axes)",
    ]
