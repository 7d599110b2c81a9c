"""The bodies of AMD's block operators, in standard operators: exact, and valid for any shape.

A tensor is seen as [outer, blocks, size of a block, inner], with zeros behind its last block. The
shared exponent is that of the largest number in a block: ``_BINADE`` finds the power of two at or
below it with nothing but correctly rounded sums and products. Splitting t by the factor 2**23 + 1
(Veltkamp) rounds it to one bit; where that went up, half of it is the answer.
"""

from __future__ import annotations

from lowbit.config.specs import BfpSpec, MxSpec
from lowbit.emit.functions import number
from lowbit.numerics.blocks import MINIFLOATS, Element, Minifloat, Rounding

# Operators that take their axes as an input, not as an attribute, from this operator set on.
_AXES_AS_INPUT = 18
_LARGEST = 3.4028234663852886e38
_LOWEST_BINADE = 2.0**-127


def block_body(spec: BfpSpec | MxSpec, opset: int) -> str:
    """Return the body of a function of ``x`` and the attribute ``axis`` that gives ``y``."""
    shape = [spec.block // 2, 2] if isinstance(spec, BfpSpec) and spec.pairs else [spec.block]
    steps = [*_cut(spec.block, shape), *_finite()]
    top = _axes([2, 3] if len(shape) > 1 else [2], opset)
    steps += [*top[0], f"top = ReduceMax <keepdims = 1{top[1]}> (sizes{top[2]})"]
    steps += _binade("top", "binade")
    if isinstance(spec, MxSpec) and spec.element is not Element.INT8:
        steps += _minifloats(MINIFLOATS[spec.element])
    else:
        steps += _integers(spec, opset)
    return "\n".join([*steps, *_join()])


def _integers(spec: BfpSpec | MxSpec, opset: int) -> list[str]:
    """Return the steps from ``blocks`` and ``binade`` to ``rounded``, integers times ``step``."""
    bits = spec.bits - 9 if isinstance(spec, BfpSpec) else 7
    high = 2**bits - 1
    low = -high if isinstance(spec, BfpSpec) else -(2**bits)
    steps = [f"fraction = {number(2.0 ** (1 - bits))}", "step = Mul(binade, fraction)"]
    if isinstance(spec, BfpSpec) and spec.pairs:
        declared, attribute, argument = _axes([3], opset)
        steps += [
            *(line.replace("axes", "pair_axes") for line in declared),
            f"pair = ReduceMax <keepdims = 1{attribute}> (sizes{argument.replace('axes', 'pair_axes')})",
            "finer = Less(pair, binade)",
            f"half = {number(0.5)}",
            "fine_step = Mul(step, half)",
            "own_step = Where(finer, fine_step, step)",
        ]
    else:
        steps += ["own_step = Identity(step)"]
    return [
        *steps,
        "scaled = Div(numbers, own_step)",
        *_round("scaled", "whole", spec.rounding),
        f"low = {number(float(low))}",
        f"high = {number(float(high))}",
        "codes = Clip(whole, low, high)",
        "rounded = Mul(codes, own_step)",
    ]


def _minifloats(small: Minifloat) -> list[str]:
    """Return the steps from ``blocks`` and ``binade`` to ``rounded``: each has its own exponent."""
    return [
        f"fraction = {number(2.0**-small.emax)}",
        "scale = Mul(binade, fraction)",
        "scaled = Div(numbers, scale)",
        "magnitude = Abs(scaled)",
        *_split("magnitude", "own"),
        f"lowest_normal = {number(2.0**small.emin)}",
        "own_binade = Max(own, lowest_normal)",
        f"ulp = {number(2.0**-small.mantissa)}",
        "own_step = Mul(own_binade, ulp)",
        "steps = Div(scaled, own_step)",
        "whole = Round(steps)",
        "element = Mul(whole, own_step)",
        f"low = {number(-small.largest)}",
        f"high = {number(small.largest)}",
        "codes = Clip(element, low, high)",
        "rounded = Mul(codes, scale)",
    ]


def _cut(size: int, shape: list[int]) -> list[str]:
    """Return the steps from ``x`` to ``blocks``."""
    inside = ", ".join(str(n) for n in (-1, *shape))
    return [
        "zero = Constant <value_ints = [0]> ()",
        "one = Constant <value_ints = [1]> ()",
        "end = Constant <value_ints = [9223372036854775807]> ()",
        f"size = Constant <value_ints = [{size}]> ()",
        f"inside = Constant <value_ints = [{inside}]> ()",
        "axis_number = Constant <value_int: int = @axis> ()",
        "given_axis = Unsqueeze(axis_number, zero)",
        "shape = Shape(x)",
        "rank = Shape(shape)",
        "from_front = Add(given_axis, rank)",
        "first = Mod(from_front, rank)",
        "next = Add(first, one)",
        "before = Slice(shape, zero, first)",
        "length = Slice(shape, first, next)",
        "behind = Slice(shape, next, end)",
        "outer = ReduceProd <keepdims = 1> (before)",
        "inner = ReduceProd <keepdims = 1> (behind)",
        "minus_length = Neg(length)",
        "missing = Mod(minus_length, size)",
        "flat_shape = Concat <axis = 0> (outer, length, inner)",
        "flat = Reshape(x, flat_shape)",
        "padding = Concat <axis = 0> (zero, zero, zero, zero, missing, zero)",
        "padded = Pad(flat, padding)",
        "block_shape = Concat <axis = 0> (outer, inside, inner)",
        "blocks = Reshape(padded, block_shape)",
    ]


def _finite() -> list[str]:
    """Return the steps to ``numbers`` and their ``sizes``, with zeros for what is not finite."""
    return [
        "all_sizes = Abs(blocks)",
        f"largest = {number(_LARGEST)}",
        "is_finite = LessOrEqual(all_sizes, largest)",
        f"nothing = {number(0.0)}",
        "numbers = Where(is_finite, blocks, nothing)",
        "sizes = Abs(numbers)",
    ]


def _join() -> list[str]:
    """Return the steps from ``rounded`` to ``y``; what is not finite stays what it is."""
    return [
        "kept = Where(is_finite, rounded, blocks)",
        "whole_length = Add(length, missing)",
        "long_shape = Concat <axis = 0> (outer, whole_length, inner)",
        "long = Reshape(kept, long_shape)",
        "cut = Slice(long, zero, length, one)",
        "y = Reshape(cut, shape)",
    ]


def _binade(source: str, target: str) -> list[str]:
    """Return the steps to the power of two at or below each number, of any size."""
    return [
        f"huge = {number(2.0**64)}",
        f"tiny = {number(2.0**-64)}",
        f"unit = {number(1.0)}",
        f"is_huge = Greater({source}, huge)",
        "down = Where(is_huge, tiny, unit)",
        "up = Where(is_huge, huge, unit)",
        f"near = Mul({source}, down)",
        *_split("near", "near_binade"),
        "far_binade = Mul(near_binade, up)",
        f"lowest = {number(_LOWEST_BINADE)}",
        f"{target} = Max(far_binade, lowest)",
    ]


def _split(source: str, target: str) -> list[str]:
    """Return the steps to the power of two at or below each number, none above 2**100."""
    return [
        f"{target}_factor = {number(2.0**23 + 1)}",
        f"{target}_product = Mul({source}, {target}_factor)",
        f"{target}_rest = Sub({target}_product, {source})",
        f"{target}_nearest = Sub({target}_product, {target}_rest)",
        f"{target}_above = Greater({target}_nearest, {source})",
        f"{target}_half = {number(0.5)}",
        f"{target}_below = Mul({target}_nearest, {target}_half)",
        f"{target} = Where({target}_above, {target}_below, {target}_nearest)",
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


def _axes(axes: list[int], opset: int) -> tuple[list[str], str, str]:
    """Return the axes of a reduction as a step before it, an attribute and an argument."""
    words = ", ".join(str(axis) for axis in axes)
    if opset >= _AXES_AS_INPUT:
        return [f"axes = Constant <value_ints = [{words}]> ()"], "", ", axes"
    return [], f", axes = [{words}]", ""
