"""Find the nodes whose fraction bits a datapath limits, in terms of planned tensors."""

from __future__ import annotations

from collections.abc import Container, Sequence

import onnx_ir as ir

from lowbit.graph.editing import ARITHMETIC, only_consumer
from lowbit.ops.families import GATES
from lowbit.planning.placement import effective_output
from lowbit.planning.plan import Plan
from lowbit.scales.shift_limits import ELEMENTWISE, Limited
from lowbit.targets.target import ShiftLimits


def find_limited(model: ir.Model, plan: Plan, limits: ShiftLimits) -> list[Limited]:
    """Return the limited nodes whose tensors are all planned, in graph order."""
    planned = {t.name for t in plan.tensors}
    biases = {row.node for row in plan.biases if not row.spec.is_accumulator}
    limited = (*limits.accumulating, *ELEMENTWISE)
    found = []
    for node in model.graph:
        if node.op_type not in limited or node.meta.get(ARITHMETIC):
            continue
        output = planned_output(node, planned)
        if output is not None:
            accumulates = node.op_type in limits.accumulating
            describe = _describe_layer if accumulates else _describe_elementwise
            row = describe(node, output, planned, biases)
            found += [] if row is None else [row]
    return found


def planned_output(node: ir.Node, planned: Container[str]) -> str | None:
    """Return the planned tensor after a node: its output, or that of a relu fused to it."""
    value = effective_output(node)
    if value.name in planned:
        return value.name
    consumer = only_consumer(value)
    if consumer is None:
        return None
    result = effective_output(consumer)
    return result.name if result.name in planned else None


def _describe_layer(
    node: ir.Node, output: str, planned: set[str], biases: set[str]
) -> Limited | None:
    source, weight = _planned_names(node.inputs[:2], planned)
    if source is None or weight is None:
        return None
    follower = only_consumer(node.outputs[0])
    return Limited(
        node.name or "",
        node.op_type,
        (source,),
        output,
        weight,
        has_bias=node.name in biases,
        before_leaky_relu=follower is not None and follower.op_type == "LeakyRelu",
    )


def _describe_elementwise(
    node: ir.Node, output: str, planned: set[str], biases: set[str]
) -> Limited | None:
    del biases
    inputs = [n for n in _planned_names(node.inputs, planned) if n is not None]
    if len(inputs) < len(node.inputs):
        return None
    name = node.name or ""
    return Limited(name, node.op_type, tuple(inputs), output, is_swish=_is_swish(node))


def _planned_names(values: Sequence[ir.Value | None], planned: set[str]) -> list[str | None]:
    return [v.name if v is not None and v.name in planned else None for v in values]


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
        if producer is not None and producer.op_type in GATES and producer.inputs[0] is value:
            return True
    return False
