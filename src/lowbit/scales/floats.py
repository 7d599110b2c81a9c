"""The scales and values of tensors in 16-bit floats, and the values of constants in blocks.

Blocks have no parameters: a block's scale follows from its own numbers, in the model.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.specs import BfpSpec, FloatSpec, MxSpec, Spec
from lowbit.errors import ModelError
from lowbit.graph.editing import read_tensor
from lowbit.numerics.blocks import round_bfp, round_mx
from lowbit.numerics.float16 import FloatFormat, rounded, scale_to_fit
from lowbit.numerics.formats import FloatArray
from lowbit.planning.plan import Plan, TensorPlan
from lowbit.scales.ranges import range_of


def float_scales(model: ir.Model, plan: Plan, stats: Stats) -> dict[str, float]:
    """Return the scale of every tensor in 16-bit floats that is scaled."""
    scales: dict[str, float] = {}
    for tensor in plan.tensors:
        spec = tensor.spec
        if isinstance(spec, FloatSpec) and spec.scaled and tensor.leader == tensor.name:
            peak = _peak(model, tensor, spec, stats)
            scales[tensor.name] = float(scale_to_fit(peak, spec.format))
    leader = {tensor.name: tensor.leader for tensor in plan.tensors}
    return {name: scales[of] for name, of in leader.items() if of in scales}


def float_values(model: ir.Model, tensor: TensorPlan) -> FloatArray:
    """Return what is written of a constant: its values, made such that the format holds them.

    In bfloat16 what is nearly zero becomes the smallest normal number and what is nearly infinite
    the largest, as AMD Quark has it; other values stay what they are.
    """
    stored = model.graph.initializers[tensor.name].const_value
    if stored is None:
        raise ValueError(f"the plan lists {tensor.name!r} as a constant, but it has no data")
    values = np.asarray(read_tensor(stored), np.float32)
    if np.isnan(values).any():
        raise ModelError(
            f"constant {tensor.name!r} holds NaN; keep the nodes that read it in float with "
            "--exclude, or repair the model"
        )
    spec = tensor.spec
    if not isinstance(spec, FloatSpec) or spec.scaled:
        return values
    lowest = np.finfo(np.float32).tiny if spec.format is FloatFormat.BFLOAT16 else 0.0
    magnitude = np.abs(values)
    if magnitude.size and (magnitude.max() > spec.format.largest or magnitude.min() < lowest):
        return np.sign(values) * np.clip(magnitude, lowest, spec.format.largest).astype(np.float32)
    return values


def rounded_values(values: FloatArray, tensor: TensorPlan, scale: float = 1.0) -> FloatArray:
    """Return the values that the model computes with, after rounding to the tensor's format."""
    return round_as(values, tensor.spec, tensor.axis, scale)


def round_as(values: FloatArray, spec: Spec, axis: int | None, scale: float = 1.0) -> FloatArray:
    """Return what ``values`` become in a 16-bit float or block format."""
    match spec:
        case FloatSpec(format=fmt):
            return rounded(values, fmt, scale)
        case BfpSpec():
            return round_bfp(
                values,
                axis or 0,
                bits=spec.bits,
                block=spec.block,
                pairs=spec.pairs,
                rounding=spec.rounding,
            )
        case MxSpec():
            return round_mx(
                values, axis or 0, element=spec.element, block=spec.block, rounding=spec.rounding
            )
    raise TypeError(f"{spec.describe()} is an integer format")


def _peak(model: ir.Model, tensor: TensorPlan, spec: FloatSpec, stats: Stats) -> float:
    if tensor.role == "weight":
        values = float_values(model, tensor)
        return float(np.abs(values).max()) if values.size else 0.0
    limits = tensor.range
    if limits is None:
        limits = range_of(stats[tensor.observe], spec, tensor.name)
    return max(abs(limits[0]), abs(limits[1]))
