"""Number formats other than integers: scales, stored values and dequantized values.

One row for each kind of spec. Blocks have no parameters: a block's scale follows from its own numbers,
in the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.specs import BfpSpec, BlockSpec, FloatSpec, MxSpec, Spec
from lowbit.errors import ModelError
from lowbit.graph.editing import read_tensor
from lowbit.numerics.formats import FloatArray, FloatFormat, rounded, scale_to_fit
from lowbit.planning.plan import Plan, TensorPlan
from lowbit.scales.ranges import range_of


class NumberFormat(Protocol):
    """How the values of a tensor are scaled, stored and rounded in one kind of format."""

    def scale(self, spec: Any, largest: float) -> float:
        """Return the scale of a tensor whose largest magnitude is given."""

    def storable(self, values: FloatArray, spec: Any) -> FloatArray:
        """Return a constant's values, made such that the format holds them."""

    def rounded(self, values: FloatArray, spec: Any, axis: int | None, scale: float) -> FloatArray:
        """Return the values that the model computes with."""


class _Float16:
    def scale(self, spec: FloatSpec, largest: float) -> float:
        return float(scale_to_fit(largest, spec.format))

    def storable(self, values: FloatArray, spec: FloatSpec) -> FloatArray:
        """In bfloat16 what is nearly zero becomes the smallest normal number, and so on upwards."""
        if spec.scaled:
            return values
        lowest = np.finfo(np.float32).tiny if spec.format is FloatFormat.BFLOAT16 else 0.0
        magnitude = np.abs(values)
        if magnitude.size and (magnitude.max() > spec.format.largest or magnitude.min() < lowest):
            finite = np.clip(magnitude, lowest, spec.format.largest).astype(np.float32)
            return np.sign(values) * finite
        return values

    def rounded(
        self, values: FloatArray, spec: FloatSpec, axis: int | None, scale: float
    ) -> FloatArray:
        del axis
        return rounded(values, spec.format, scale)


class _Blocks:
    def scale(self, spec: BlockSpec, largest: float) -> float:
        del spec, largest
        return 1.0

    def storable(self, values: FloatArray, spec: BlockSpec) -> FloatArray:
        del spec
        return values

    def rounded(
        self, values: FloatArray, spec: BlockSpec, axis: int | None, scale: float
    ) -> FloatArray:
        del scale
        return spec.rounded(values, axis or 0)


NUMBER_FORMATS: Mapping[type[Any], NumberFormat] = MappingProxyType(
    {FloatSpec: _Float16(), BfpSpec: _Blocks(), MxSpec: _Blocks()}
)


def float_scales(model: ir.Model, plan: Plan, stats: Stats) -> dict[str, float]:
    """Return the scale of every tensor that has one and is not in integers."""
    scales: dict[str, float] = {}
    for tensor in plan.tensors:
        spec = tensor.spec
        own = tensor.leader == tensor.name and not spec.is_integer
        if own and spec.calibration is not None:
            largest = _largest(model, tensor, stats)
            scales[tensor.name] = NUMBER_FORMATS[type(spec)].scale(spec, largest)
    leader = {tensor.name: tensor.leader for tensor in plan.tensors}
    return {name: scales[of] for name, of in leader.items() if of in scales}


def storable_values(model: ir.Model, tensor: TensorPlan) -> FloatArray:
    """Return what is written of a constant: its values, made such that the format holds them."""
    stored = model.graph.initializers[tensor.name].const_value
    if stored is None:
        raise ValueError(f"the plan lists {tensor.name!r} as a constant, but it has no data")
    values = np.asarray(read_tensor(stored), np.float32)
    if np.isnan(values).any():
        raise ModelError(
            f"constant {tensor.name!r} holds NaN; keep the nodes that read it in float with "
            "--exclude, or repair the model"
        )
    return NUMBER_FORMATS[type(tensor.spec)].storable(values, tensor.spec)


def rounded_values(
    values: FloatArray, spec: Spec, axis: int | None, scale: float = 1.0
) -> FloatArray:
    """Return the values that the model computes with, after rounding to the format."""
    return NUMBER_FORMATS[type(spec)].rounded(values, spec, axis, scale)


def _largest(model: ir.Model, tensor: TensorPlan, stats: Stats) -> float:
    if tensor.role == "weight":
        values = storable_values(model, tensor)
        return float(np.abs(values).max()) if values.size else 0.0
    limits = tensor.range
    if limits is None:
        limits = range_of(stats[tensor.observe], tensor.spec, tensor.name)
    return max(abs(limits[0]), abs(limits[1]))
