"""A graph that also gives the gradients of its outputs with respect to tensors inside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import is_constant, node_inputs
from lowbit.graph.naming import name_everything, tensor_name
from lowbit.numerics.metrics import channel_axes
from lowbit.ops.backward import BACKWARD
from lowbit.ops.backward_graph import BackwardGraph

SEEDS = 65521
"""How many numbers an output's seed has: a prime, so that what is repeated falls on other channels and rows."""

_TINY = 1e-20


@dataclasses.dataclass(frozen=True, slots=True)
class OutputPart:
    """An output whose error counts: a tensor, or a run of its channels along an axis.

    Attributes:
        tensor: The tensor.
        axis: Where its channels lie; ``None``: all of it counts.
        start: The first channel.
        stop: The first channel after it.
        is_one: Whether all channels have one size: scores, most of which are next to nothing. Otherwise each
            counts relative to its own.
        read_at: The scores whose best says how much each position counts, if not all do.
        counts: A factor on the error of the part, which is relative to its size.
    """

    tensor: str
    axis: int | None = None
    start: int = 0
    stop: int = 0
    is_one: bool = False
    read_at: OutputPart | None = None
    counts: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class WithGradients:
    """A copy of a model with gradients.

    Attributes:
        model: The copy; what is read of it has to be made its output.
        backward: Adds further nodes to it.
        seeds: By output, the input that is fed what its numbers are multiplied by: ``SEEDS`` numbers,
            which are repeated as often as need be.
        gradients: By tensor, the gradient of the sum of all that, every output relative to its size.
    """

    model: ir.Model
    backward: BackwardGraph
    seeds: Mapping[str, ir.Value]
    gradients: Mapping[str, ir.Value]


def with_gradients(
    model: ir.Model, outputs: Sequence[OutputPart], tensors: Collection[str]
) -> WithGradients:
    """Return a copy of a model that gives the gradients of ``outputs`` with respect to ``tensors``.

    Outputs that are not float32 say nothing. Tensors on whose way to an output lies a node without a rule are
    left out, as are those that no output depends on. Every part counts relative to its size, the root of its
    squared sum.
    """
    model = model.clone()
    name_everything(model)
    graph = model.graph
    values = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    nodes, backpropagation = list(graph), _Backpropagation(BackwardGraph(graph))
    seeds = {}
    for name in dict.fromkeys(part.tensor for part in outputs):
        value = values[name]
        parts = [part for part in outputs if part.tensor == name]
        if value.dtype != ir.DataType.FLOAT or value.shape is None:
            continue
        seed = ir.Value(
            name=f"{name}/lowbit/seed",
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=ir.Shape([SEEDS]),
        )
        graph.inputs.append(seed)
        seeds[name] = seed
        scale = _scale(backpropagation.to, values, value, parts)
        backpropagation.add(
            name, backpropagation.to.node("Mul", _repeated(backpropagation.to, seed, value), scale)
        )
    for node in reversed(nodes):
        backpropagation.back(node)
    found = {
        name: gradient
        for name in tensors
        if (gradient := backpropagation.gradient(name)) is not None
    }
    return WithGradients(model, backpropagation.to, seeds, found)


def _repeated(to: BackwardGraph, seed: ir.Value, value: ir.Value) -> ir.Value:
    """Return a seed in the shape of its output, whatever that is."""
    zero, one, count = (to.constant(np.array(number, np.int64)) for number in (0, 1, SEEDS))
    numbers = to.node("Range", zero, to.node("Size", value), one)
    return to.like(to.node("Gather", seed, to.node("Mod", numbers, count), axis=0), value)


def _scale(
    to: BackwardGraph,
    values: Mapping[str, ir.Value],
    value: ir.Value,
    parts: Sequence[OutputPart],
) -> ir.Value:
    """Return what the numbers of a tensor are multiplied by: one over the size of their part."""
    whole = next((part for part in parts if part.axis is None), None)
    if whole is not None:
        return _scale_of(to, values, value, whole)
    axis, done, scales = parts[0].axis or 0, 0, list[ir.Value]()
    for part in sorted(parts, key=lambda part: part.start):
        if part.start > done:  # channels between that say nothing
            between = to.sliced(value, axis, done, part.start)
            scales.append(to.node("Mul", between, to.number(0.0)))
        scales.append(_scale_of(to, values, to.sliced(value, axis, part.start, part.stop), part))
        done = part.stop
    rest = to.sliced(value, axis, done, None)
    return to.node("Concat", *scales, to.node("Mul", rest, to.number(0.0)), axis=axis)


def _scale_of(
    to: BackwardGraph, values: Mapping[str, ir.Value], value: ir.Value, part: OutputPart
) -> ir.Value:
    """Return what the numbers of one part are multiplied by, in its shape."""
    whole = values[part.tensor]
    rank = len(whole.shape or ())
    channels: int | None = part.stop - part.start
    if part.axis is None:
        channels = _size(whole, 1) if rank > 1 else None
    axes, count = channel_axes(rank, channels)
    if part.is_one or part.axis not in (None, 1):  # channels that come last are no axis of figures
        axes, count = tuple(range(rank)), 1
    read = value if part.read_at is None else to.node("Mul", value, _best(to, values, part))
    size = to.node("Sqrt", to.sum(to.node("Mul", read, read), axes))
    least = to.node("Max", size, to.number(_TINY))
    scale = to.node("Reciprocal", to.node("Mul", least, to.number(count**0.5 / part.counts)))
    if part.read_at is not None:
        scale = to.node("Mul", scale, _best(to, values, part))
    return to.spread(scale, value)


def _best(to: BackwardGraph, values: Mapping[str, ir.Value], part: OutputPart) -> ir.Value:
    """Return the best score of each position."""
    read_at = part.read_at or part
    scores = values[read_at.tensor]
    if read_at.axis is not None:
        scores = to.sliced(scores, read_at.axis, read_at.start, read_at.stop)
    return to.largest(scores, (1 if read_at.axis is None else read_at.axis,))


def _size(value: ir.Value, axis: int) -> int | None:
    size = None if value.shape is None else value.shape[axis]
    return size if isinstance(size, int) else None


class _Backpropagation:
    """The backpropagation over the nodes from the last to the first."""

    def __init__(self, to: BackwardGraph) -> None:
        self.to = to
        self._parts: dict[str, list[ir.Value]] = {}
        self._unknown: set[str] = set()
        self._sums: dict[str, ir.Value] = {}

    def add(self, name: str, gradient: ir.Value) -> None:
        """Add what one consumer of a tensor passes back."""
        self._parts.setdefault(name, []).append(gradient)

    def gradient(self, name: str) -> ir.Value | None:
        """Return the gradient of a tensor all of whose consumers were passed, if it is known."""
        parts = self._parts.get(name)
        if not parts or name in self._unknown:
            return None
        if name not in self._sums:
            total = parts[0]
            for part in parts[1:]:
                total = self.to.node("Add", total, part)
            self._sums[name] = total
        return self._sums[name]

    def back(self, node: ir.Node) -> None:
        """Pass the gradients of a node's outputs on to its inputs."""
        names = [value.name or "" for value in node.outputs]
        is_unknown = any(name in self._unknown for name in names)
        gradients = [self.gradient(name) for name in names]
        if not is_unknown and all(gradient is None for gradient in gradients):
            return
        rule = BACKWARD.get(node.op_type) if node.domain == "" and not is_unknown else None
        direct = {id(value) for value in node.inputs if value is not None}
        for captured in node_inputs(node):
            if id(captured) not in direct:
                self._unknown.add(tensor_name(captured))
        for index, value in enumerate(node.inputs):
            if value is None or is_constant(value) or value.dtype != ir.DataType.FLOAT:
                continue
            back = None if rule is None else rule(self.to, node, index, gradients)
            if back is None:
                self._unknown.add(tensor_name(value))
            else:
                self.add(tensor_name(value), back)
