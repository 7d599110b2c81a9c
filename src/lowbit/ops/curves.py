"""Find elementwise functions that are the only use of a tensor, such as x * sigmoid(x).

Exporters write them in two nodes or more, a gate and a product; devices may have a gate of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import only_consumer, scalar
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import DoubleArray

Function = Callable[[DoubleArray], DoubleArray]


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """The function of a tensor; ``gate``: the factor that the tensor is multiplied by in it, if any."""

    apply: Function
    gate: Gate | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """A factor that is itself a function of the tensor, by the name of what holds it."""

    name: str
    apply: Function


def _sigmoid(_: ir.Node) -> Function:
    return lambda x: 0.5 * (np.tanh(0.5 * x) + 1.0)


def _hard_sigmoid(node: ir.Node) -> Function:
    slope = node.attributes.get_float("alpha", 0.2)
    middle = node.attributes.get_float("beta", 0.5)
    return lambda x: np.clip(slope * x + middle, 0.0, 1.0)


CURVES: Mapping[str, Callable[[ir.Node], Function]] = MappingProxyType(
    {"Sigmoid": _sigmoid, "HardSigmoid": _hard_sigmoid, "Tanh": lambda _: np.tanh}
)
"""Functions that saturate, by operator."""


def find_curves(graph: ir.Graph) -> dict[str, Curve]:
    """Return the curves of a graph by the names of the tensors that they are functions of."""
    found = {}
    for node in graph:
        make = CURVES.get(node.op_type) if node.domain == "" else None
        source = node.inputs[0] if make is not None else None
        curve = None if make is None or source is None else _curve(node, source, make(node))
        if curve is not None and source is not None:
            found[tensor_name(source)] = curve
    return found


def _curve(node: ir.Node, source: ir.Value, function: Function) -> Curve | None:
    """Return the curve that begins with a node, unless more than it is computed of ``source``."""
    others = [user for user in source.consumers() if user is not node]
    result, factor = _scaled(node)
    if source.is_graph_output() or result.is_graph_output() or len(others) > 1:
        return None

    def gate(x: DoubleArray) -> DoubleArray:
        return factor * function(x)

    if not others:
        return Curve(gate)
    product = others[0]
    is_gated = product.op_type == "Mul" and set(product.inputs) == {source, result}
    if not is_gated or only_consumer(result) is not product:
        return None
    return Curve(lambda x: x * gate(x), Gate(tensor_name(result), gate))


def _scaled(node: ir.Node) -> tuple[ir.Value, float]:
    """Return what a node writes, times constants where it is multiplied by such, and their product."""
    value, factor = node.outputs[0], 1.0
    while (user := only_consumer(value)) is not None and user.op_type == "Mul":
        numbers = [n for v in user.inputs if v is not value and (n := scalar(v)) is not None]
        if len(numbers) != 1:
            break
        value, factor = user.outputs[0], factor * numbers[0]
    return value, factor
