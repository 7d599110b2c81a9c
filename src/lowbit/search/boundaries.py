"""Format boundaries: what a layer produces stays in its format, what others consume is in theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from lowbit.config.mixed_precision import LayerOption
from lowbit.config.specs import Requantization, Spec, TensorOverride
from lowbit.graph.naming import tensor_name
from lowbit.planning.plan import Plan


@dataclasses.dataclass(frozen=True, slots=True)
class Boundaries:
    """The format of each tensor that changes, and who consumes it in another one."""

    tensors: tuple[TensorOverride, ...] = ()
    requantize: tuple[Requantization, ...] = ()


def find_boundaries(
    graph: ir.Graph, plan: Plan, changes: Sequence[tuple[str, LayerOption]]
) -> Boundaries:
    """Return how tensors between layers of different formats are produced and consumed.

    A graph's output is consumed in the common format.
    """
    options = dict(changes)
    planned = {row.name: row.spec for row in plan.activations()}
    found = [
        _boundary(value, options, planned)
        for value in (*graph.inputs, *(v for node in graph for v in node.outputs))
        if value.name in planned
    ]
    return Boundaries(
        tuple(tensor for boundary in found for tensor in boundary.tensors),
        tuple(row for boundary in found for row in boundary.requantize),
    )


def _boundary(
    value: ir.Value, options: Mapping[str, LayerOption], planned: Mapping[str, Spec]
) -> Boundaries:
    name = tensor_name(value)
    common = planned[name]
    consumed = {node: _consumed(node, options, common) for node in dict.fromkeys(value.consumers())}
    produced = _produced(value, options, planned, [*consumed.values()], common)
    before = value.is_graph_output() and produced != common
    wanted = dict.fromkeys([*consumed.values(), *([common] if before else [])])
    tensors = [TensorOverride(tensor=name, spec=produced, optional=True)]
    requantize = []
    for number, spec in enumerate(spec for spec in wanted if spec != produced):
        at_output = before and spec == common
        other = f"{name}_before" if at_output else f"{name}_again_{number}"
        names = tuple(str(node.name) for node, its in consumed.items() if its == spec)
        requantize.append(
            Requantization(tensor=name, consumers=names, name=other, before=at_output)
        )
        if at_output:
            tensors[0] = TensorOverride(tensor=other, spec=produced, optional=True)
        else:
            tensors.append(TensorOverride(tensor=other, spec=spec, optional=True))
    # Names are given away last, so that the rows before still find the tensor.
    requantize.sort(key=lambda row: row.before)
    changed = tuple(t for t in tensors if t.spec != planned.get(t.tensor))
    return Boundaries(changed, tuple(requantize))


def _consumed(node: ir.Node, options: Mapping[str, LayerOption], common: Spec) -> Spec:
    option = options.get(node.name or "")
    return (option.inputs if option is not None else None) or common


def _produced(
    value: ir.Value,
    options: Mapping[str, LayerOption],
    planned: Mapping[str, Spec],
    consumed: Sequence[Spec],
    common: Spec,
) -> Spec:
    """Return the format a tensor is produced in: its producer's, or else a consumer's."""
    producer = value.producer()
    option = options.get(producer.name or "") if producer is not None else None
    if option is not None:
        return option.outputs or option.inputs or common
    if producer is not None and any(v is not None and v.name in planned for v in producer.inputs):
        return common
    # A graph's input, or an activation that is one with the layer before it.
    return next((spec for spec in consumed if spec != common), common)
