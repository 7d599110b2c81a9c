"""Final outputs: nothing that is quantized reads them, so they stay in float where the target can do so.

A scale for all logits has steps as large as the differences that decide between classes. What the weights of
the layer that makes them lose, no later layer makes up for: a configuration may give them more bits.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping

import onnx_ir as ir

from lowbit.config.specs import Spec
from lowbit.graph.editing import is_constant, only_consumer
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.ops.families import PROBABILITIES
from lowbit.ops.linear import has_constant_weight, linear_operator
from lowbit.ops.traits import Operators, is_data_movement
from lowbit.planning.requests import Placement
from lowbit.planning.rules import Scheme
from lowbit.targets.target import Target

_WHY = "it only leads to outputs of the model, which stay in float"


def drop_final(
    graph: ir.Graph,
    placement: Placement,
    target: Target,
    operators: Operators,
    named: Collection[str],
) -> None:
    """Take back the requests for final outputs, except for tensors that are named or have a rule.

    So it is with the scores that a final Softmax or Sigmoid reads. Changes ``placement``.
    """
    for node in graph:
        if node not in placement.active or operator_name(node) not in target.float_outputs:
            continue
        tail = _tail(node, functools.partial(_passes, operators=operators))
        values = [each.outputs[0] for each in (node, *(tail or ()))]
        requests = [placement.activations.get(str(v.name)) for v in values]
        fixed = any(r is not None and r.priority > 0 for r in requests)
        if tail is None or fixed or any(v.name in named for v in values):
            continue
        for value in values:
            placement.activations.pop(tensor_name(value), None)
        for each in tail:
            if placement.active.pop(each, None) is not None:
                placement.float_why[each] = _WHY


def find_final_scores(
    graph: ir.Graph, placement: Placement, operators: Operators
) -> frozenset[str]:
    """Return the planned tensors that hold the scores of an output of the model.

    That is what the last computation writes, before any Softmax or Sigmoid, where it is one row of
    numbers a sample or what a matrix makes. Feature maps are no scores.
    """
    found: set[str] = set()
    passes = functools.partial(_passes, operators=operators)
    for node in graph:
        if node not in placement.active or passes(node):
            continue
        tail = _tail(node, passes)
        if tail is None or not _makes_scores(node, tail):
            continue
        values = (each.outputs[0] for each in (node, *tail))
        planned = (str(v.name) for v in values if v.name in placement.activations)
        found.update(itertools.islice(planned, 1))
    return frozenset(found)


def _makes_scores(node: ir.Node, tail: list[ir.Node]) -> bool:
    layer, output = linear_operator(node), (*tail[-1:], node)[0].outputs[0]
    is_row = output.shape is not None and output.shape.rank() <= 2
    return is_row or (layer is not None and layer.is_matrix)


def with_final_weight(
    schemes: Mapping[ir.Node, Scheme], weight: Spec | None, operators: Operators
) -> Mapping[ir.Node, Scheme]:
    """Give linear layers that make an output of the model weights of their own, where no rule spoke."""
    if weight is None:
        return schemes

    def passes(node: ir.Node) -> bool:
        adds = node.op_type == "Add" and any(v is not None and is_constant(v) for v in node.inputs)
        return adds or _passes(node, operators)

    return {
        node: dataclasses.replace(scheme, weight=weight)
        if scheme.priority == 0
        and scheme.excluded is None
        and has_constant_weight(node)
        and _tail(node, passes) is not None
        else scheme
        for node, scheme in schemes.items()
    }


def _tail(node: ir.Node, passes: Callable[[ir.Node], bool]) -> list[ir.Node] | None:
    """Return the nodes that make one output of the graph of what a node writes; ``None``: more follows."""
    found: list[ir.Node] = []
    value = node.outputs[0]
    while not (value.is_graph_output() and not value.uses()):
        consumer = only_consumer(value)
        if consumer is None or not passes(consumer):
            return None
        found.append(consumer)
        value = consumer.outputs[0]
    return found


def _passes(node: ir.Node, operators: Operators) -> bool:
    scores = node.op_type in PROBABILITIES and node.domain == ""
    return len(node.outputs) == 1 and (scores or is_data_movement(node, operators))
