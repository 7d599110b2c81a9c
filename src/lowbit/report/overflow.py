"""Which tensors come so near the largest number of their 16-bit float format that they may overflow.

Peaks are those of the float model on the samples it was verified on; other data may go further.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from lowbit.config.specs import FloatSpec
from lowbit.graph.editing import constant
from lowbit.numerics.float16 import FloatFormat
from lowbit.planning.plan import Plan, TensorPlan

# Two bits of exponent below the largest number.
_NEAR = 0.25


def near_overflow(model: ir.Model, plan: Plan, peaks: Mapping[str, float]) -> tuple[str, ...]:
    """Return a warning for activations, and one for constants, that come near overflow."""
    found: dict[str, list[tuple[float, TensorPlan, FloatSpec]]] = {}
    for tensor in plan.tensors:
        spec = tensor.spec
        if not isinstance(spec, FloatSpec) or spec.scaled:
            continue
        peak = peaks.get(tensor.name, 0.0)
        if tensor.role == "weight":
            peak = _largest(model, tensor.name, spec)
        if not peak <= spec.format.largest * _NEAR:
            found.setdefault(tensor.role, []).append((peak, tensor, spec))
    return tuple(_warning(role, rows) for role, rows in found.items())


def _warning(role: str, rows: list[tuple[float, TensorPlan, FloatSpec]]) -> str:
    peak, tensor, spec = max(rows, key=lambda row: row[0])
    others = f" ({len(rows) - 1} more like it)" if len(rows) > 1 else ""
    word = "BF16" if spec.format is FloatFormat.BFLOAT16 else "FP16"
    way_out = f"preset {word}_SCALED, or scaled in the {role}'s spec, prevents that"
    if spec.format is FloatFormat.FLOAT16:
        way_out += "; so does BF16"
    return (
        f"{role} {tensor.name!r} reaches {peak:.3g}{others}, near the largest "
        f"{spec.format.value}, {spec.format.largest:.6g}: it may overflow. {way_out}"
    )


def _largest(model: ir.Model, name: str, spec: FloatSpec) -> float:
    """Return the largest magnitude of a constant; those of bfloat16 cannot exceed it."""
    if spec.format is FloatFormat.BFLOAT16:
        return 0.0
    data = constant(model.graph.initializers[name])
    return float(np.abs(data).max()) if data is not None and data.size else 0.0
