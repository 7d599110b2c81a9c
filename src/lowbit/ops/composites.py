"""Find operators that exporters decompose into several nodes: normalizations, GELU, Softmax.

Their inner tensors are means of squares, reciprocals and error functions, of which eight bits leave
nothing; a runtime computes such a group as one operator or in float. Each is found by the one node
that gives it away, and reaches from the tensor that all of it follows from to the last of its nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from lowbit.graph.editing import ARITHMETIC, is_constant, only_consumer, scalar
from lowbit.ops.families import SCALINGS
from lowbit.ops.traits import reduced_axes

_ELEMENTWISE = frozenset(
    "Add Sub Mul Div Pow Sqrt Reciprocal Neg Abs Cast Exp Erf Tanh Sigmoid Max Clip Expand".split()
)
_REDUCES = ("ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare")
_CURVES = ("Erf", "Tanh", "Sigmoid")
# A LayerNormalization has eleven nodes with its casts, a GELU in its tanh form nine.
_MOST = 16
# Nodes from the root or the curve to where it meets the tensor it was computed from.
_FARTHEST = 6

Order = Mapping[ir.Node, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Composite:
    """One decomposed operator: its nodes in graph order; ``last_axis``: whether it normalizes that."""

    name: str
    nodes: tuple[ir.Node, ...]
    last_axis: bool = False


def find_composites(graph: ir.Graph) -> list[Composite]:
    """Return the decomposed operators of a graph, in order."""
    order = {node: index for index, node in enumerate(graph)}
    found = []
    for node in graph:
        if node.domain == "":
            composite = _normalization(node, order) or _gelu(node, order) or _softmax(node, order)
            found += [composite] if composite is not None else []
    return found


def _normalization(node: ir.Node, order: Order) -> Composite | None:
    """Return a decomposed normalization: a tensor divided by a root of a reduction of itself."""
    is_root = node.op_type in ("Sqrt", "ReduceL2")
    if node.op_type == "Pow":
        exponent = scalar(node.inputs[1])
        is_root = exponent is not None and abs(exponent) == 0.5
    reduction = _reduction_before(node) if is_root else None
    inner = _around(node, order) if reduction is not None else None
    if reduction is None or inner is None:
        return None
    centered = _moving(reduction)[0].producer()
    for start in (centered, *(v.producer() for v in _moving(centered) if centered is not None)):
        inner |= _mean_subtraction(start)
    return _composite("normalization", inner, order, last_axis=_reduces_last(reduction))


def _reduction_before(node: ir.Node) -> ir.Node | None:
    """Return the reduction whose result, but for a small constant, a root is taken of."""
    for _ in range(_FARTHEST):
        if node.op_type in _REDUCES:
            return node
        before = _moving(node)
        producer = before[0].producer() if len(before) == 1 else None
        if producer is None or not _is_part(producer):
            return None
        node = producer
    return None


def _mean_subtraction(node: ir.Node | None) -> set[ir.Node]:
    """Return the nodes that subtract a tensor's mean, the mean included."""
    if node is None or node.op_type != "Sub" or len(_moving(node)) != 2:
        return set()
    source, mean = node.inputs
    producer = mean.producer() if mean is not None else None
    if producer is None or producer.op_type not in _REDUCES or producer.inputs[0] is not source:
        return set()
    return {node, producer}


def _reduces_last(node: ir.Node) -> bool:
    axes, source = reduced_axes(node), node.inputs[0]
    if axes is not None and source is not None and source.shape is not None:
        return axes == [len(source.shape) - 1]
    given = scalar(node.inputs[1]) if len(node.inputs) > 1 else None
    return given == -1 or tuple(node.attributes.get_ints("axes", ())) == (-1,)


def _gelu(node: ir.Node, order: Order) -> Composite | None:
    """Return a GELU around its error function, its tanh, or its sigmoid of a multiple."""
    if node.op_type not in _CURVES:
        return None
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    inner = _around(node, order)
    # Without a factor it is SiLU, which targets know: x * sigmoid(x).
    if inner is None or before not in inner:
        return None
    last = max(inner, key=order.__getitem__)
    half = only_consumer(last.outputs[0])
    if half is not None and half.op_type in SCALINGS:
        inner |= {half} if any(scalar(v) in (0.5, 2.0) for v in half.inputs) else set()
    return _composite("GELU", inner, order)


def _softmax(node: ir.Node, order: Order) -> Composite | None:
    """Return a Softmax around its exponential, with or without subtracting the maximum."""
    if node.op_type != "Exp":
        return None
    consumers = tuple(node.outputs[0].consumers())
    sums = [n for n in consumers if n.op_type == "ReduceSum"]
    ends = [n for n in consumers if n.op_type == "Div" and n.inputs[0] is node.outputs[0]]
    if len(sums) != 1 or len(ends) != 1 or ends[0].inputs[1] is not sums[0].outputs[0]:
        return None
    nodes = {node, sums[0], ends[0]}
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    if before is not None and before.op_type == "Sub" and before.inputs[1] is not None:
        largest = before.inputs[1].producer()
        nodes |= {before, largest} if largest and largest.op_type == "ReduceMax" else set()
    return _composite("Softmax", nodes, order)


def _composite(
    name: str, nodes: set[ir.Node], order: Order, *, last_axis: bool = False
) -> Composite:
    return Composite(name, tuple(sorted(nodes, key=order.__getitem__)), last_axis)


def _around(seed: ir.Node, order: Order) -> set[ir.Node] | None:
    """Return the nodes from the one tensor that ``seed`` follows from to where both meet again."""
    node = seed
    for _ in range(_FARTHEST):
        consumer = only_consumer(node.outputs[0])
        if consumer is None or not _is_part(consumer):
            return None
        if len(set(_moving(consumer))) > 1:
            return _from_one_tensor(consumer, seed, order)
        node = consumer
    return None


def _from_one_tensor(end: ir.Node, seed: ir.Node, order: Order) -> set[ir.Node] | None:
    """Return the nodes before ``end``, itself included, up to a tensor that all of them follow from."""
    if end.op_type not in SCALINGS:
        return None
    inside, pending = {end}, set(_moving(end))
    while len(inside) <= _MOST:
        if len(pending) == 1 and seed in inside:
            return inside
        # The latest first, so that what several of them follow from is reached last.
        computed = [(order[p], v) for v in pending if (p := v.producer()) in order and p]
        if not computed:
            return None
        _, value = max(computed, key=lambda pair: pair[0])
        producer = value.producer()
        if producer is None or not _is_part(producer):
            return None
        inside.add(producer)
        pending.discard(value)
        pending.update(_moving(producer))
    return None


def _is_part(node: ir.Node) -> bool:
    if node.domain != "" or node.meta.get(ARITHMETIC):
        return False
    return node.op_type in _ELEMENTWISE or node.op_type in _REDUCES


def _moving(node: ir.Node | None) -> list[ir.Value]:
    """Return the computed floats that a node reads."""
    inputs = node.inputs if node is not None else ()
    return [
        v for v in inputs if v is not None and not is_constant(v) and v.dtype == ir.DataType.FLOAT
    ]
