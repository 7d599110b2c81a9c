"""Find operators whose inputs must not be rounded: comparisons and the like, and those with a pole at zero.

Comparisons and the like read a model's inputs as they are given. A number at a threshold lies on either side
of it once it is rounded, a token's number that is given in float becomes another token. What was
computed is near a threshold by chance alone; what is given is often exactly there.

A logarithm or a reciprocal makes very large numbers of those near zero: no format may round to zero
before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from lowbit.graph.editing import is_constant, is_float_tensor
from lowbit.graph.naming import tensor_name
from lowbit.ops.families import BOUNDS, POLE_AT_ZERO, READ_SHAPES, SCALINGS, STEPS, SUMS
from lowbit.ops.linear import linear_operator
from lowbit.ops.traits import Operators, is_data_movement, traits_of
from lowbit.planning.requests import Placement


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions:
    """The nodes that must read inputs of the model unrounded.

    Attributes:
        nodes: The nodes that decide.
        readers: For each input, and for what moves of it, those that read it for such a node.
    """

    nodes: frozenset[ir.Node] = frozenset()
    readers: dict[ir.Value, set[ir.Node]] = dataclasses.field(default_factory=dict)

    def reason(self, node: ir.Node) -> str | None:
        """Return why a node stays in float, if it decides."""
        return "its decision needs the exact input" if node in self.nodes else None


def find_decisions(graph: ir.Graph, operators: Operators) -> Decisions:
    """Return the nodes that decide by inputs of the model, and what leads from these to them."""
    nodes: set[ir.Node] = set()
    readers: dict[ir.Value, set[ir.Node]] = {}
    for node in graph:
        if not _decides(node, operators):
            continue
        for value in node.inputs:
            way = [] if value is None else [*_from_input(value, node, operators)]
            for source, reader in way:
                nodes.add(node)
                readers.setdefault(source, set()).add(reader)
    return Decisions(frozenset(nodes), readers)


def drop_before_decisions(graph: ir.Graph, placement: Placement, decisions: Decisions) -> None:
    """Make all nodes that lead to a decision read float. Changes ``placement``."""
    names = {node: str(node.name) for node in graph}
    for value, readers in decisions.readers.items():
        request = placement.activations.get(tensor_name(value))
        if request is None:
            continue
        left = [names[n] for n in value.consumers() if n in names and n not in readers]
        asked = left if request.consumers is None else request.consumers
        request.consumers = tuple(name for name in asked if name in left)
        if not request.consumers:
            del placement.activations[tensor_name(value)]


def _decides(node: ir.Node, operators: Operators) -> bool:
    """Whether what a node writes changes by steps with what it reads."""
    if node.op_type in READ_SHAPES or traits_of(node, operators) is not None:
        return False
    known = [v for v in node.outputs if v.dtype is not None]
    return node.op_type in STEPS or any(not v.dtype.is_floating_point() for v in known if v.dtype)


def _from_input(
    value: ir.Value, reader: ir.Node, operators: Operators
) -> Iterator[tuple[ir.Value, ir.Node]]:
    """Yield the values from an input of the model to a node, each with what reads it, if one leads there."""
    way = [(value, reader)]
    producer = value.producer()
    while producer is not None and is_data_movement(producer, operators) and producer.inputs[0]:
        value = producer.inputs[0]
        way.append((value, producer))
        producer = value.producer()
    if producer is None and value.is_graph_input() and is_float_tensor(value):
        yield from way


def feeds_pole(node: ir.Node, operators: Operators) -> bool:
    """Whether an operator with a pole at zero reads a matrix product, moved, scaled, shifted or bounded.

    The product of an input in 8 bits has nothing left of what is small, such as the quiet bands of a
    spectrogram, of which the logarithm makes as much as of what is large.
    """
    row = linear_operator(node)
    pending = [node] if row is not None and row.is_matrix else []
    seen = set(pending)
    while pending:
        for use in pending.pop().outputs[0].uses():
            reader = use.node
            if reader.domain == "" and reader.op_type in POLE_AT_ZERO:
                return True
            if reader not in seen and _keeps_order(reader, operators):
                seen.add(reader)
                pending.append(reader)
    return False


def _keeps_order(node: ir.Node, operators: Operators) -> bool:
    """Whether a node moves, scales, shifts or bounds one tensor by constants."""
    if is_data_movement(node, operators):
        return True
    by_constants = node.op_type in SUMS | SCALINGS | BOUNDS and node.domain == ""
    return by_constants and sum(v is not None and not is_constant(v) for v in node.inputs) == 1


def drop_before_poles(graph: ir.Graph, placement: Placement, operators: Operators) -> None:
    """Take back formats that round to zero before operators with a pole there. Changes ``placement``.

    The same holds for data movement before them.
    """
    for node in graph:
        pending = [node] if node.domain == "" and node.op_type in POLE_AT_ZERO else []
        while pending:
            value = pending.pop().inputs[0]
            request = None if value is None else placement.activations.get(str(value.name))
            if value is None or request is None or not request.spec.rounds_to_zero:
                continue
            del placement.activations[tensor_name(value)]
            producer = value.producer()
            if producer is not None and is_data_movement(producer, operators):
                pending.append(producer)
