"""Where formats meet: what a layer writes stays in its format, what others read is in theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from lowbit.config.mixed_precision import LayerOption
from lowbit.config.specs import Requantization, Spec, TensorOverride
from lowbit.graph.naming import tensor_name
from lowbit.planning import Plan


@dataclasses.dataclass(frozen=True, slots=True)
class Meetings:
    """The format of each tensor that changes, and who reads it in another one."""

    tensors: tuple[TensorOverride, ...] = ()
    requantize: tuple[Requantization, ...] = ()


def find_meetings(
    graph: ir.Graph, plan: Plan, changes: Sequence[tuple[str, LayerOption]]
) -> Meetings:
    """Return how tensors between layers of different formats are written and read.

    A graph's output is read in the common format.
    """
    options = dict(changes)
    planned = {row.name: row.spec for row in plan.activations()}
    found = [
        _meeting(value, options, planned)
        for value in (*graph.inputs, *(v for node in graph for v in node.outputs))
        if value.name in planned
    ]
    return Meetings(
        tuple(tensor for met in found for tensor in met.tensors),
        tuple(row for met in found for row in met.requantize),
    )


def _meeting(
    value: ir.Value, options: Mapping[str, LayerOption], planned: Mapping[str, Spec]
) -> Meetings:
    name = tensor_name(value)
    common = planned[name]
    readers = {node: _read(node, options, common) for node in dict.fromkeys(value.consumers())}
    written = _written(value, options, planned, [*readers.values()], common)
    before = value.is_graph_output() and written != common
    wanted = dict.fromkeys([*readers.values(), *([common] if before else [])])
    tensors = [TensorOverride(tensor=name, spec=written, optional=True)]
    requantize = []
    for number, spec in enumerate(spec for spec in wanted if spec != written):
        at_output = before and spec == common
        other = f"{name}_before" if at_output else f"{name}_again_{number}"
        names = tuple(str(node.name) for node, its in readers.items() if its == spec)
        requantize.append(Requantization(tensor=name, readers=names, name=other, before=at_output))
        if at_output:
            tensors[0] = TensorOverride(tensor=other, spec=written, optional=True)
        else:
            tensors.append(TensorOverride(tensor=other, spec=spec, optional=True))
    # Names are given away last, so that the rows before still find the tensor.
    requantize.sort(key=lambda row: row.before)
    return Meetings(tuple(t for t in tensors if t.spec != planned.get(t.tensor)), tuple(requantize))


def _read(node: ir.Node, options: Mapping[str, LayerOption], common: Spec) -> Spec:
    option = options.get(node.name or "")
    return (option.inputs if option is not None else None) or common


def _written(
    value: ir.Value,
    options: Mapping[str, LayerOption],
    planned: Mapping[str, Spec],
    read: Sequence[Spec],
    common: Spec,
) -> Spec:
    """Return the format a tensor is written in: its writer's, or if that has none a reader's."""
    producer = value.producer()
    option = options.get(producer.name or "") if producer is not None else None
    if option is not None:
        return option.outputs or option.inputs or common
    if producer is not None and any(v is not None and v.name in planned for v in producer.inputs):
        return common
    # A graph's input, or an activation that is one with the layer before it.
    return next((spec for spec in read if spec != common), common)
