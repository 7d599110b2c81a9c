"""Find the nodes whose positions a datapath limits, in terms of planned tensors."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.config.specs import TensorSpec
from lowbit.graph.constants import is_constant
from lowbit.graph.names import tensor_name
from lowbit.plan.placement import effective_output, only_consumer
from lowbit.plan.plan import Plan
from lowbit.resolve.limits import Limited
from lowbit.targets.target import Target

_LIMITED = ("Conv", "Gemm", "Add", "Sub", "Mul", "HardSigmoid")
_GATES = ("Sigmoid", "HardSigmoid")


def find_limited(model: ir.Model, plan: Plan, target: Target) -> list[Limited]:
    """Return the limited nodes whose tensors are all planned, in graph order."""
    leader = {t.name: t.leader for t in plan.activations()}
    weights = {t.name for t in plan.weights()}
    biases = {row.node for row in plan.biases if isinstance(row.spec, TensorSpec)}
    found = []
    for node in model.graph:
        if node.op_type not in _LIMITED:
            continue
        output = planned_output(node, leader)
        if output is None or node.inputs[0] is None:
            continue
        limited = _describe(node, output, leader, weights, biases)
        if limited is not None:
            found.append(limited)
    del target
    return found


def planned_output(node: ir.Node, planned: dict[str, str]) -> str | None:
    """Return the planned tensor behind a node: its output, or that of a relu fused to it."""
    value = effective_output(node)
    if value.name in planned:
        return value.name
    consumer = only_consumer(value)
    if consumer is None:
        return None
    result = effective_output(consumer)
    return result.name if result.name in planned else None


def _describe(
    node: ir.Node, output: str, leader: dict[str, str], weights: set[str], biases: set[str]
) -> Limited | None:
    name = node.name or ""
    if node.op_type in ("Conv", "Gemm"):
        source, weight = node.inputs[0], node.inputs[1]
        if source is None or weight is None:
            return None
        if source.name not in leader or weight.name not in weights:
            return None
        follower = only_consumer(node.outputs[0])
        return Limited(
            name,
            node.op_type,
            (f"a:{leader[source.name]}",),
            f"a:{leader[output]}",
            f"w:{weight.name}",
            f"b:{name}" if name in biases else None,
            before_leaky_relu=follower is not None and follower.op_type == "LeakyRelu",
        )
    keys = []
    for value in node.inputs:
        if value is None:
            continue
        if is_constant(value) and value.name in weights:
            keys.append(f"w:{value.name}")
        elif value.name in leader:
            keys.append(f"a:{leader[tensor_name(value)]}")
        else:
            return None
    return Limited(name, node.op_type, tuple(keys), f"a:{leader[output]}", is_swish=_is_swish(node))


def _is_swish(node: ir.Node) -> bool:
    """Whether this multiplies a value by its own (hard) sigmoid."""
    if node.op_type != "Mul" or len(node.inputs) != 2:
        return False
    for gate, value in (node.inputs, tuple(reversed(node.inputs))):
        if gate is None or value is None:
            continue
        producer = gate.producer()
        while producer is not None and producer.op_type == "Mul" and producer.inputs[0] is not None:
            producer = producer.inputs[0].producer()
        if producer is not None and producer.op_type in _GATES and producer.inputs[0] is value:
            return True
    return False
