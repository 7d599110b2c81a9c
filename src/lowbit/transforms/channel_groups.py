"""Groups of tensors whose channels can only be scaled together, with all that touches them.

Channels begin where a layer writes them and end where layers read them. Between the two they pass
activations and pooling, and Add ties them to the channels of other layers. A group with anything
else in it is left alone, with the reason.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from lowbit.graph.editing import constant_shape
from lowbit.graph.naming import tensor_name
from lowbit.ops.channels import Place, carry
from lowbit.ops.traits import clip_bounds
from lowbit.transforms.layers import Layer, find_layer, has_shared_weight

_ADDS = ("Add", "Sub", "Sum")


@dataclasses.dataclass(frozen=True, slots=True)
class Offset:
    """A constant that an Add adds to each channel, and the axis of its channels."""

    node: ir.Node
    index: int
    axis: int


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """A layer that reads channels; ``repeat`` neighbouring inputs of it are one channel."""

    layer: Layer
    repeat: int


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """A Clip's upper bound on the channels of its input."""

    value: ir.Value
    place: Place
    bound: float


@dataclasses.dataclass(slots=True, eq=False)
class Group:
    """Channels that are scaled together, and what must be scaled with them."""

    name: str
    channels: int
    writers: list[Layer]
    readers: list[Reader] = dataclasses.field(default_factory=list)
    offsets: list[Offset] = dataclasses.field(default_factory=list)
    limits: list[Limit] = dataclasses.field(default_factory=list)
    obstacles: list[str] = dataclasses.field(default_factory=list)

    def absorb(self, other: Group) -> None:
        """Take over all of another group."""
        for field in ("writers", "readers", "offsets", "limits", "obstacles"):
            getattr(self, field).extend(getattr(other, field))
        if other.channels != self.channels:
            self.obstacles.append(f"added to {other.channels} channels")


def find_groups(graph: ir.Graph) -> list[Group]:
    """Return every group of channels that a layer writes, in order; some have obstacles."""
    search = _Search(graph)
    for node in graph:
        search.visit(node)
    groups = list(dict.fromkeys(search.groups.values()))
    for group in groups:
        if not group.readers and not group.obstacles:
            group.obstacles.append("no layer reads it")
    return groups


class _Search:
    """One walk along the graph, in order: which group each tensor's channels belong to."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._places: dict[ir.Value, Place] = {}
        self._members: dict[Group, list[ir.Value]] = {}
        self.groups: dict[ir.Value, Group] = {}

    def visit(self, node: ir.Node) -> None:
        """Let a node write, pass on or read channels."""
        layer = find_layer(node)
        if layer is not None:
            self._read(layer)
            self._write(layer)
        elif node.op_type in _ADDS and node.domain == "":
            self._add(node)
        else:
            self._pass_on(node)
        for value in node.outputs:
            self._check_uses(value)

    def _write(self, layer: Layer) -> None:
        output = layer.node.outputs[0]
        place = written(layer)
        if place is None:
            return
        group = Group(tensor_name(output), layer.outputs, [layer])
        if has_shared_weight(layer):
            group.obstacles.append(f"{layer.node.name} shares its weights")
        self._place(output, group, place)

    def _place(self, value: ir.Value, group: Group, place: Place) -> None:
        self.groups[value], self._places[value] = group, place
        self._members.setdefault(group, []).append(value)

    def _read(self, layer: Layer) -> None:
        for index, value in enumerate(layer.node.inputs):
            if value not in self.groups:
                continue
            place, group = self._places[value], self.groups[value]
            if index == 0 and reads(layer, place, group.channels):
                group.readers.append(Reader(layer, place.repeat))
                if has_shared_weight(layer):
                    group.obstacles.append(f"{layer.node.name} shares its weights")
            else:
                group.obstacles.append(f"{layer.node.name} does not read it channel by channel")

    def _pass_on(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value is None or value not in self.groups:
                continue
            group, place = self.groups[value], self._places[value]
            after = carry(node, place) if index == 0 else None
            if after is None:
                group.obstacles.append(f"read by {node.op_type}")
                continue
            self._place(node.outputs[0], group, after)
            bound = clip_bounds(node)[1] if node.op_type == "Clip" else None
            if bound is not None:
                group.limits.append(Limit(value, place, bound))

    def _add(self, node: ir.Node) -> None:
        """Tie the channels of all that is added, constants included."""
        values = [value for value in node.inputs if value is not None]
        tied = [value for value in values if value in self.groups]
        if not tied:
            return
        places = {self._places[value] for value in tied}
        group = self.groups[tied[0]]
        for value in tied[1:]:
            self._merge(group, self.groups[value])
        place = places.pop()
        if places or place.repeat > 1:
            group.obstacles.append(f"{node.op_type} of different layouts")
        for index, value in enumerate(values):
            if value in self.groups:
                continue
            axis = _offset_axis(value, place, group.channels)
            if axis is None:
                group.obstacles.append(f"{node.op_type} of something that cannot be scaled")
            else:
                group.offsets.append(Offset(node, index, axis))
        self._place(node.outputs[0], group, place)

    def _merge(self, kept: Group, gone: Group) -> None:
        if kept is gone:
            return
        kept.absorb(gone)
        members = self._members.pop(gone)
        self._members[kept] += members
        self.groups.update(dict.fromkeys(members, kept))

    def _check_uses(self, value: ir.Value) -> None:
        group = self.groups.get(value)
        if group is None:
            return
        if value.is_graph_output():
            group.obstacles.append("an output of the model")
        if any(use.node.graph is not self._graph for use in value.uses()):
            group.obstacles.append("read inside a subgraph")


def written(layer: Layer) -> Place | None:
    """Return where the channels of a layer's output lie."""
    match layer.node.op_type:
        case "Conv" | "ConvTranspose":
            return Place(1, layer.weight.ndim)
        case "Gemm":
            return Place(1, 2) if layer.bias is None or layer.bias.ndim <= 2 else None
    shape = layer.node.outputs[0].shape
    return None if shape is None or len(shape) < 2 else Place(len(shape) - 1, len(shape))


def reads(layer: Layer, place: Place, channels: int) -> bool:
    """Whether the inputs of the layer are the channels at ``place``."""
    convolves = layer.node.op_type in ("Conv", "ConvTranspose")
    axis = 1 if convolves else place.rank - 1
    fits = layer.inputs == channels * place.repeat and place.axis == axis
    return fits and (place.repeat == 1 or not convolves)


def _offset_axis(value: ir.Value, place: Place, channels: int) -> int | None:
    """Return the axis of a constant along which it has a number for each channel."""
    shape = constant_shape(value)
    if shape is None or len(shape) > place.rank or value.dtype != ir.DataType.FLOAT:
        return None
    axis = place.axis - (place.rank - len(shape))
    return axis if axis >= 0 and shape[axis] == channels else None
