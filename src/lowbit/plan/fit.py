"""Does a plan, perhaps edited by hand, fit the model?"""

from __future__ import annotations

import onnx_ir as ir

from lowbit.config.specs import ProductBias, describe_format
from lowbit.errors import PlanError, did_you_mean
from lowbit.plan.plan import Plan


def check_fit(plan: Plan, model: ir.Model) -> None:
    """Raise if the plan names what the model does not have, or contradicts itself."""
    values = ir.convenience.create_value_mapping(model.graph)
    planned = plan.by_name()
    if not plan.tensors:
        raise PlanError(
            "nothing would be quantized: every node is excluded or has no rule. "
            "`lowbit plan` lists the reason for each"
        )
    if len(planned) != len(plan.tensors):
        raise PlanError("the plan lists a tensor twice")
    for tensor in plan.tensors:
        if tensor.name not in values:
            raise PlanError(
                f"the plan lists tensor {tensor.name!r}, which the model does not have"
                f"{did_you_mean(tensor.name, values)}"
            )
        if tensor.role == "weight" and tensor.name not in model.graph.initializers:
            raise PlanError(f"the plan lists {tensor.name!r} as a weight, but it is computed")
        leader = planned.get(tensor.leader)
        if leader is None or leader.leader != leader.name:
            raise PlanError(
                f"tensor {tensor.name!r} uses the parameters of {tensor.leader!r}, "
                "which has none of its own in this plan"
            )
        if describe_format(leader.spec) != describe_format(tensor.spec):
            raise PlanError(
                f"tensor {tensor.name!r} is {describe_format(tensor.spec)} but uses the parameters "
                f"of {leader.name!r}, which is {describe_format(leader.spec)}"
            )
    _check_biases(plan, model)


def _check_biases(plan: Plan, model: ir.Model) -> None:
    planned = plan.by_name()
    nodes = {node.name for node in model.graph}
    for row in plan.biases:
        if row.node not in nodes:
            raise PlanError(
                f"the plan has a bias for node {row.node!r}, which the model does not have"
                f"{did_you_mean(row.node, [n for n in nodes if n])}"
            )
        if not isinstance(row.spec, ProductBias):
            continue
        for name in (row.input, row.weight):
            if name not in planned:
                raise PlanError(
                    f"the bias of {row.node!r} is scaled by {name!r}, which is not in the plan; "
                    "remove the bias's row too, or put the tensor back"
                )
