"""All stages that need no data, for a plan by itself."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.config.transforms import CrossLayerEqualization
from lowbit.graph.editing import is_constant, only_consumer
from lowbit.ops.linear import linear_operator
from lowbit.pipeline import stages
from lowbit.state import Loaded, Normalized, Planned, Transformed, extended


def plan_only(state: Loaded) -> Planned:
    """Return the planned state; its plan may quantize nothing."""
    transformed = _transformed(stages.normalize(state))
    return stages.plan(stages.prepare(transformed), check=False)


def _transformed(state: Normalized) -> Transformed:
    """Do what shows in a plan: without data equalization changes numbers, and those do not.

    It also parts constants that several layers share, and a plan has the names of the copies.
    """
    equalization = state.config.equalization
    plain = equalization is None or type(equalization) is CrossLayerEqualization
    if state.samples is not None or not plain or _shares_constants(state.normalized):
        return stages.transform(state)
    return extended(state, Transformed, float_model=state.normalized, transform_notes=())


def _shares_constants(model: ir.Model) -> bool:
    """Whether a constant of a linear layer is read, or given out, somewhere else as well."""
    return any(
        value is not None and is_constant(value) and only_consumer(value) is None
        for node in model.graph
        if linear_operator(node) is not None
        for value in node.inputs[1:]
    )
