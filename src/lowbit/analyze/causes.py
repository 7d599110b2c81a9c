"""Explain the error of a tensor in words, from its statistics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from lowbit.analyze.observations import Observation
from lowbit.analyze.quantizers import Constant, Quantizer, Scale
from lowbit.graph.session import Array
from lowbit.ops.families import SCALINGS
from lowbit.ops.linear import linear_operator
from lowbit.report.values import Cause

CLIPPED = "clipped range"
OUTLIER = "outlier channel"
SHARED = "shared scale"
POWER = "power-of-two rounding"
SATURATED = "bias saturation"
DEAD = "dead channel"
FEW_BITS = "few bits"

_MUCH_OF_THE_NOISE = 0.4
_OUTLIER_ACTIVATION, _OUTLIER_WEIGHT = 8.0, 4.0
_UNUSED_BY_POWER, _UNUSED_BY_SHARING = 1.25, 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class SharedScale:
    """A node whose tensors have one scale."""

    node: str
    op_type: str
    tensors: tuple[str, ...]


def find_shared_scales(model: ir.Model, quantizers: Sequence[Quantizer]) -> dict[str, SharedScale]:
    """Return by tensor the node that makes it share its scale."""
    by_result = {r: q for q in quantizers for r in q.results}
    by_source = {q.source: q for q in quantizers if q.kind == "activation"}
    found: dict[str, SharedScale] = {}
    for node in model.graph:
        if linear_operator(node) is not None or node.op_type in SCALINGS:
            continue  # factors may have any scale
        inputs = [by_result.get(str(v.name)) for v in node.inputs if v is not None]
        inputs = [q for q in inputs if q is not None and q.kind == "activation"]
        if len(inputs) < 2:
            continue
        around = [*inputs, *(by_source.get(str(v.name)) for v in node.outputs)]
        joined = [q for q in around if q is not None and q.scale is not None]
        for quantizer in joined:
            same = tuple(q.tensor for q in joined if _same(q.scale, quantizer.scale))
            if len(same) > 1:
                found.setdefault(quantizer.tensor, SharedScale(str(node.name), node.op_type, same))
    return found


def activation_causes(
    quantizer: Quantizer, seen: Observation, shared: SharedScale | None
) -> tuple[Cause, ...]:
    """Return the causes of an activation's error, the likeliest first."""
    scale = quantizer.scale
    if scale is None or not seen.count:
        return ()
    found: list[Cause] = []
    limit = max(abs(bound) for bound in scale.limits)
    unused = limit / seen.reach if seen.reach else math.inf
    if seen.noise and seen.clip_noise > _MUCH_OF_THE_NOISE * seen.noise:
        found.append(_clipped(seen.clipped / seen.count, scale, (seen.low, seen.high), seen))
    if shared is not None and unused > _UNUSED_BY_SHARING:
        others = ", ".join(t for t in shared.tensors if t != quantizer.tensor)
        text = f"{shared.op_type} {shared.node} gives it the scale of {others}, {unused:.1f} times its own"
        found.append(Cause(name=SHARED, detail=text))
    elif is_power_of_two(scale) and _UNUSED_BY_POWER < unused < 2.2:
        found.append(_rounded_up(unused))
    found += _outlier(seen.channel_low, seen.channel_high, _OUTLIER_ACTIVATION)
    return tuple(found) or (_few_bits(scale, math.sqrt(seen.signal / seen.count)),)


def weight_causes(
    quantizer: Quantizer, weight: Constant, bias: Constant | None, axis: int
) -> tuple[Cause, ...]:
    """Return the causes of the error of a weight or of its bias."""
    scale, plain = quantizer.scale, weight.float_value
    found: list[Cause] = []
    if bias is not None:
        limits = np.iinfo(bias.codes.dtype)
        stuck = int(np.count_nonzero((bias.codes <= limits.min + 1) | (bias.codes >= limits.max)))
        if stuck:
            text = f"{stuck} of {bias.codes.size} biases are at the limit of {bias.codes.dtype}"
            found.append(Cause(name=SATURATED, detail=text))
    if scale is None or plain is None or not plain.size:
        return tuple(found)
    ranked = np.atleast_1d(plain)  # a constant of an Add may be a single number
    rows = np.moveaxis(ranked, axis, 0).reshape(ranked.shape[axis], -1)
    codes = np.moveaxis(np.atleast_1d(weight.quantized), axis, 0).reshape(rows.shape)
    dead = np.flatnonzero(~codes.any(axis=1) & rows.any(axis=1))
    if dead.size:
        text = (
            f"{dead.size} of {len(rows)} output channels are rounded to nothing (first {dead[0]})"
        )
        found.append(Cause(name=DEAD, detail=text))
    if scale.scale.size == 1:
        found += _outlier(rows.min(axis=1), rows.max(axis=1), _OUTLIER_WEIGHT)
    low, high = scale.limits
    beyond = plain - np.clip(plain, low, high)
    noise = float(np.sum(np.square(plain - weight.quantized, dtype=np.float64)))
    clip_noise = float(np.sum(np.square(beyond, dtype=np.float64)))
    if scale.scale.size == 1 and noise and clip_noise > _MUCH_OF_THE_NOISE * noise:
        share = np.count_nonzero(beyond) / plain.size
        found.append(_clipped(share, scale, (float(plain.min()), float(plain.max())), None))
    unused = max(abs(low), abs(high)) / max(float(np.abs(plain).max()), 1e-30)
    if is_power_of_two(scale) and _UNUSED_BY_POWER < unused < 2.2:
        found.append(_rounded_up(unused))
    return tuple(found) or (_few_bits(scale, float(np.sqrt(np.mean(np.square(plain))))),)


def is_power_of_two(scale: Scale) -> bool:
    """Whether every scale is a power of two."""
    exponents = np.log2(scale.scale)
    return bool(np.all(exponents == np.rint(exponents)))


def _same(a: Scale | None, b: Scale | None) -> bool:
    if a is None or b is None or a.scale.shape != b.scale.shape:
        return False
    return bool(np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point))


def _clipped(
    share: float, scale: Scale, reached: tuple[float, float], seen: Observation | None
) -> Cause:
    low, high = scale.limits
    part = "" if seen is None else f", {seen.clip_noise / seen.noise:.0%} of its error"
    text = (
        f"{share:.2%} of the values lie beyond {low:.3g}..{high:.3g}{part}; "
        f"they reach {reached[0]:.3g}..{reached[1]:.3g}"
    )
    return Cause(name=CLIPPED, detail=text)


def _rounded_up(unused: float) -> Cause:
    text = f"the power of two leaves {1 - 1 / unused:.0%} of the integers unused"
    return Cause(name=POWER, detail=text)


def _outlier(low: Array | None, high: Array | None, times: float) -> list[Cause]:
    if low is None or high is None or len(low) < 4:
        return []
    reach = np.maximum(np.abs(low), np.abs(high))
    middle = float(np.median(reach))
    worst = int(np.argmax(reach))
    if middle == 0 or reach[worst] < times * middle:
        return []
    text = f"channel {worst} reaches {reach[worst]:.3g}, the median channel {middle:.3g}"
    return [Cause(name=OUTLIER, detail=text)]


def _few_bits(scale: Scale, size: float) -> Cause:
    typical = float(np.median(scale.scale))
    bits = (scale.high - scale.low + 1).bit_length() - 1
    many = "a typical scale" if scale.scale.size > 1 else "the scale"
    text = f"{bits} bits: a typical value of {size:.3g} is {size / typical:.1f} times {many}, {typical:.3g}"
    return Cause(name=FEW_BITS, detail=text)
