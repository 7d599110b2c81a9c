"""Which tensors use the same parameters: data movement, and what a target wants aligned."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.graph.editing import is_constant, only_consumer
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.ops.traits import Kind, moves_exactly
from lowbit.planning.placement import data_inputs, data_outputs
from lowbit.planning.plan import AlignedGroup
from lowbit.planning.requests import Placement
from lowbit.targets.target import Target


def find_leaders(placement: Placement, graph: ir.Graph, target: Target) -> dict[str, str]:
    """Return, for each planned activation, the one whose parameters it uses."""
    leader = {name: name for name in placement.activations}
    for node in graph:
        traits = placement.active.get(node)
        shares = operator_name(node) in target.shares
        if traits is None or not shares or not moves_exactly(node):
            continue
        inputs = [tensor_name(v) for v in data_inputs(node, traits) if not is_constant(v)]
        if len(inputs) != 1 or inputs[0] not in leader:
            continue
        for value in data_outputs(node, traits):
            name = tensor_name(value)
            if (
                name in leader
                and placement.activations[name].spec == placement.activations[inputs[0]].spec
            ):
                leader[name] = leader[inputs[0]]
    for before, after in placement.caches.items():
        leader[after] = leader[before] = after
    return leader


def find_observed(placement: Placement, graph: ir.Graph) -> dict[str, str]:
    """Return, for tensors only read by a quantized clamp, the clamp's output.

    What the clamp cuts off needs no codes, so the input's range is the output's.
    """
    observed: dict[str, str] = {}
    for node in graph:
        traits = placement.active.get(node)
        if traits is None or traits.kind is not Kind.CLAMPS or node.inputs[0] is None:
            continue
        source, result = node.inputs[0], tensor_name(node.outputs[0])
        if source.name in placement.activations and only_consumer(source) is node:
            observed[tensor_name(source)] = (
                result if result in placement.activations else source.name or ""
            )
    return observed


def find_groups(placement: Placement, graph: ir.Graph, target: Target) -> tuple[AlignedGroup, ...]:
    """Return the groups of tensors that the target wants aligned, in the order it applies them."""
    groups = []
    for alignment in target.align:
        for node in graph:
            traits = placement.active.get(node)
            if operator_name(node) not in alignment.operators or traits is None:
                continue
            inputs = _planned(
                placement, [v for v in data_inputs(node, traits) if not is_constant(v)]
            )
            outputs = _planned(placement, data_outputs(node, traits))
            inputs, outputs = _of_one_format(placement, inputs, outputs)
            if inputs and outputs:
                groups.append(
                    AlignedGroup(
                        node=node.name or "",
                        op_type=node.op_type,
                        rule=alignment.rule,
                        inputs=inputs,
                        outputs=outputs,
                    )
                )
    return tuple(groups)


def _of_one_format(
    placement: Placement, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return those with the format of the first output: a scale for 16 bits is none for 8."""
    if not outputs:
        return inputs, outputs
    formats = {n: placement.activations[n].spec.format_name for n in (*inputs, *outputs)}
    wanted = formats[outputs[0]]
    same_inputs, same_outputs = (
        tuple(n for n in names if formats[n] == wanted) for names in (inputs, outputs)
    )
    return same_inputs, same_outputs


def _planned(placement: Placement, values: list[ir.Value]) -> tuple[str, ...]:
    """Return the names of the planned tensors among ``values``, followed through fused relus."""
    names = []
    for value in values:
        name = tensor_name(value)
        if name not in placement.activations:
            consumer = only_consumer(value)
            name = tensor_name(consumer.outputs[0]) if consumer is not None else name
        if name in placement.activations:
            names.append(name)
    return tuple(dict.fromkeys(names))
