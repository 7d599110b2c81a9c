"""The stage that writes a model in the target's operators."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.graph.editing import replace_node
from lowbit.planning.head import find_head
from lowbit.planning.planner import make_plan
from lowbit.state import Prepared, Transformed, extended
from lowbit.transforms.factor_groups import saturated_clips
from lowbit.transforms.float_reference import WithReference, with_reference
from lowbit.transforms.requantize import insert_requantization
from lowbit.transforms.rewrites import rewrite


def prepare(state: Transformed) -> Prepared:
    """Rewrite the model in the target's operators, and add the device's own arithmetic if it has any."""
    config, target = state.config, state.target
    shaped = rewrite(state.float_model, target.transforms, config.skip_rewrites)
    shaped = insert_requantization(shaped, config.requantize)
    adapted, joint = shaped, WithReference(shaped, {})
    if target.arithmetic:
        # What stays in float does not run on the device: it keeps its own arithmetic.
        plan = make_plan(shaped, config, target, state.operators)
        kept = {row.node for row in plan.float_nodes}
        adapted = rewrite(shaped, target.arithmetic, config.skip_rewrites, kept)
        if target.calibrate_arithmetic:
            joint = with_reference(shaped, adapted)
    if config.rescaling is not None:
        adapted = _without_saturated_clips(adapted, state)
    return extended(
        state,
        Prepared,
        calibrated_model=joint.model,
        adapted=adapted,
        float_names=joint.float_names,
        head=find_head(adapted.graph),
    )


def _without_saturated_clips(model: ir.Model, state: Transformed) -> ir.Model:
    """Return a model in which Relu stands for a Clip whose upper bound the quantizer's range implies.

    Devices compute the Clip of a Relu6 together with the layer before it, and no other. What calibration sees
    stays clipped.
    """
    planned = make_plan(model, state.config, state.target, state.operators)
    ranges = {
        row.name: row.range
        for row in planned.integers().activations()
        if row.range is not None and row.consumers is None  # all read what was rounded
    }
    model = model.clone()
    for node in saturated_clips(model.graph, ranges):
        replace_node(model.graph, node, [ir.node("Relu", [node.inputs[0]], name=node.name)])
    return model
