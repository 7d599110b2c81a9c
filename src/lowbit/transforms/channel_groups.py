"""Groups of tensors whose channels can only be scaled together, with all that touches them.

Channels begin where a layer produces them and end where layers consume them. Between the two they pass
activations and pooling, and Add ties them to the channels of other layers. A group with anything
else in it is skipped, with the reason.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from lowbit.graph.editing import constant_shape
from lowbit.graph.naming import tensor_name
from lowbit.ops.channels import ChannelLayout, propagate
from lowbit.ops.families import SUMS
from lowbit.ops.traits import clip_bounds
from lowbit.transforms.layers import WeightedLayer, find_layer


@dataclasses.dataclass(frozen=True, slots=True)
class Offset:
    """A constant that an Add adds to each channel, and the axis of its channels."""

    node: ir.Node
    index: int
    axis: int


@dataclasses.dataclass(frozen=True, slots=True)
class Consumer:
    """A layer that reads channels; ``repeat`` neighbouring inputs of it are one channel."""

    layer: WeightedLayer
    repeat: int


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """A Clip's upper bound on the channels of its output ``value``."""

    value: ir.Value
    layout: ChannelLayout
    bound: float


@dataclasses.dataclass(slots=True, eq=False)
class Group:
    """Channels that are scaled together, and what must be scaled with them."""

    name: str
    channels: int
    producers: list[WeightedLayer]
    consumers: list[Consumer] = dataclasses.field(default_factory=list)
    offsets: list[Offset] = dataclasses.field(default_factory=list)
    limits: list[Limit] = dataclasses.field(default_factory=list)
    obstacles: list[str] = dataclasses.field(default_factory=list)

    def absorb(self, other: Group, *, after: bool = True) -> None:
        """Take over all of another group, after what is here or before."""
        for field in ("producers", "consumers", "offsets", "limits", "obstacles"):
            own, theirs = getattr(self, field), getattr(other, field)
            place = len(own) if after else 0
            own[place:place] = theirs
        if other.channels != self.channels:
            gone = other.channels if after else self.channels
            self.obstacles.append(f"added to {gone} channels")
        if not after:
            self.name, self.channels = other.name, other.channels


def find_groups(graph: ir.Graph) -> list[Group]:
    """Return every group of channels that a layer writes, in order; some have obstacles."""
    search = _Search(graph)
    for node in graph:
        search.visit(node)
    groups = list(dict.fromkeys(search.groups.values()))
    for group in groups:
        if not group.consumers and not group.obstacles:
            group.obstacles.append("no layer consumes it")
    return groups


class _Search:
    """One pass along the graph, in order: which group each tensor's channels belong to."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._layouts: dict[ir.Value, ChannelLayout] = {}
        self._members: dict[Group, list[ir.Value]] = {}
        self.groups: dict[ir.Value, Group] = {}

    def visit(self, node: ir.Node) -> None:
        """Record how a node produces, passes on or consumes channels."""
        layer = find_layer(node, hold=False)
        if layer is not None:
            self._read(layer)
            self._write(layer)
        elif node.op_type in SUMS and node.domain == "":
            self._add(node)
        else:
            self._pass_on(node)
        for value in node.outputs:
            self._check_uses(value)

    def _write(self, layer: WeightedLayer) -> None:
        output = layer.node.outputs[0]
        layout = layer.output_layout()
        if layout is None:
            return
        group = Group(tensor_name(output), layer.outputs, [layer])
        if layer.has_shared_weight:
            group.obstacles.append(f"{layer.node.name} shares its weights")
        self._assign(output, group, layout)

    def _assign(self, value: ir.Value, group: Group, layout: ChannelLayout) -> None:
        self.groups[value], self._layouts[value] = group, layout
        self._members.setdefault(group, []).append(value)

    def _read(self, layer: WeightedLayer) -> None:
        for index, value in enumerate(layer.node.inputs):
            if value not in self.groups:
                continue
            layout, group = self._layouts[value], self.groups[value]
            if index == 0 and layer.consumes(layout, group.channels):
                group.consumers.append(Consumer(layer, layout.repeat))
                if layer.has_shared_weight:
                    group.obstacles.append(f"{layer.node.name} shares its weights")
            else:
                group.obstacles.append(f"{layer.node.name} does not read it channel by channel")

    def _pass_on(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value is None or value not in self.groups:
                continue
            group, layout = self.groups[value], self._layouts[value]
            after = propagate(node, layout) if index == 0 else None
            if after is None:
                group.obstacles.append(f"consumed by {node.op_type}")
                continue
            self._assign(node.outputs[0], group, after)
            bound = clip_bounds(node)[1] if node.op_type == "Clip" else None
            if bound is not None:
                group.limits.append(Limit(node.outputs[0], after, bound))

    def _add(self, node: ir.Node) -> None:
        """Tie the channels of all that is added, constants included."""
        values = [value for value in node.inputs if value is not None]
        tied = [value for value in values if value in self.groups]
        if not tied:
            return
        layouts = {self._layouts[value] for value in tied}
        for value in tied[1:]:
            self._merge(self.groups[tied[0]], self.groups[value])
        group = self.groups[tied[0]]
        layout = layouts.pop()
        if layouts or layout.repeat > 1:
            group.obstacles.append(f"{node.op_type} of different layouts")
        for index, value in enumerate(values):
            if value in self.groups:
                continue
            axis = _offset_axis(value, layout, group.channels)
            if axis is None:
                group.obstacles.append(f"{node.op_type} of something that cannot be scaled")
            else:
                group.offsets.append(Offset(node, index, axis))
        self._assign(node.outputs[0], group, layout)

    def _merge(self, kept: Group, gone: Group) -> None:
        if kept is gone:
            return
        # The smaller is renamed: along a stream of sums the larger would be, again and again.
        after = len(self._members[gone]) <= len(self._members[kept])
        larger, smaller = (kept, gone) if after else (gone, kept)
        larger.absorb(smaller, after=after)
        members = self._members.pop(smaller)
        self._members[larger] += members
        self.groups.update(dict.fromkeys(members, larger))

    def _check_uses(self, value: ir.Value) -> None:
        group = self.groups.get(value)
        if group is None:
            return
        if value.is_graph_output():
            group.obstacles.append("an output of the model")
        if any(use.node.graph is not self._graph for use in value.uses()):
            group.obstacles.append("read inside a subgraph")


def _offset_axis(value: ir.Value, layout: ChannelLayout, channels: int) -> int | None:
    """Return the axis of a constant along which it has a number for each channel."""
    shape = constant_shape(value)
    if shape is None or len(shape) > layout.rank or value.dtype != ir.DataType.FLOAT:
        return None
    axis = layout.axis - (layout.rank - len(shape))
    return axis if axis >= 0 and shape[axis] == channels else None
