"""Find where SmoothQuant can move factors: from producers of channels to the matrices that consume them.

The nearest node before a layer that can be scaled for each channel takes the factor: a fused
LayerNormalization, a product with a constant (which ends a normalization that is written out, and an exact
Gelu), or a layer. In between there may be sums with constants, activations without a bend elsewhere
than at zero, and transposition. All that consumes the channels must be such layers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import constant, constant_shape, is_constant, replace_constant
from lowbit.numerics.formats import DoubleArray
from lowbit.ops.activations import FUSED_ACTIVATIONS
from lowbit.ops.channels import ChannelLayout, propagate
from lowbit.ops.composites import Composite, find_composites
from lowbit.ops.families import SCALINGS
from lowbit.ops.linear import linear_operator
from lowbit.ops.traits import clip_bounds
from lowbit.transforms.layers import WeightedLayer, find_layer, output_ranges

_MOVING = ("Transpose", "Squeeze")

# Counted from the end, axis minus rank, this is the last axis of a tensor of any rank.
_LAST = ChannelLayout(-1, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Produced:
    """The channels that absorb the factor: the largest value and the mean square of each."""

    ranges: DoubleArray
    powers: DoubleArray


@dataclasses.dataclass(frozen=True, slots=True)
class Factor:
    """A constant to be divided by s channel by channel, or multiplied where it ``divides`` itself.

    ``layout`` is where the channels of the tensor lie that it is combined with.
    """

    node: ir.Node
    index: int
    layout: ChannelLayout
    divides: bool = False

    def fits(self, channels: int) -> bool:
        """Whether it is one number, or has one for each channel."""
        value = self.node.inputs[self.index]
        shape = constant_shape(value)
        if shape is None or value is None or value.dtype != ir.DataType.FLOAT:
            return False
        axis = self.layout.axis - (self.layout.rank - len(shape))
        return math.prod(shape) == 1 or (0 <= axis < len(shape) and shape[axis] == channels)

    def numbers(self, channels: int) -> DoubleArray:
        """Return the largest absolute number for each channel."""
        data = np.abs(np.asarray(constant(self.node.inputs[self.index]), np.float64))
        if data.size == 1:
            return np.full(channels, data.item())
        axis = self.layout.axis - (self.layout.rank - data.ndim)
        return np.asarray(np.moveaxis(data, axis, 0).reshape(channels, -1).max(axis=1))

    def scale(self, graph: ir.Graph, s: DoubleArray) -> None:
        """Put s in. Changes ``graph``."""
        data = np.asarray(constant(self.node.inputs[self.index]))
        column = s.reshape(-1, *[1] * (self.layout.rank - 1 - self.layout.axis))
        after = data * column if self.divides else data / column
        replace_constant(graph, self.node, self.index, after.astype(np.float32))


@dataclasses.dataclass(slots=True, eq=False)
class Site:
    """Channels that can be smoothed: what consumes them, and what takes the factor.

    Nothing does where there is neither a ``layer`` nor a first of ``factors``.
    """

    consumers: list[WeightedLayer] = dataclasses.field(default_factory=list)
    layer: WeightedLayer | None = None
    factors: list[Factor] = dataclasses.field(default_factory=list)
    is_own: bool = False
    """Whether the one layer quantizes its input for itself."""

    @property
    def channels(self) -> int:
        """How many there are."""
        return self.consumers[0].inputs

    def produced(self, *, per_channel: bool) -> Produced | None:
        """Return what is rounded where the channels are produced; ``None`` if s does not matter."""
        if self.layer is not None:
            kernel = self.layer.kernel
            squares = np.einsum("goit,goit->go", kernel, kernel, dtype=np.float64)
            powers = squares.reshape(-1) / max(1, math.prod(kernel.shape[2:]))
            ranges = np.asarray(output_ranges(kernel), np.float64)
            return None if per_channel else Produced(ranges, powers)
        if not self.factors or self.factors[0].divides:
            return None
        ranges = self.factors[0].numbers(self.channels)
        return Produced(ranges, np.square(ranges))


def find_sites(
    graph: ir.Graph, *, insert: bool = False, own_inputs: Collection[str] = ()
) -> list[Site]:
    """Return the sites of a graph in order.

    With ``insert`` those also whose factor no producer takes; without it only where tensors are read
    that are among ``own_inputs``.
    """
    if not any(is_matrix(node) for node in graph):
        return []
    search = _Search(graph, find_composites(graph) if own_inputs else ())
    found = [site for node in graph for site in search.from_producer(node)]
    if insert or own_inputs:
        served = {id(layer.node) for site in found for layer in site.consumers}
        more = search.without_producer(served, own_inputs)
        found += [s for s in more if insert or s.consumers[0].source in own_inputs]
    return found


class _Search:
    """Follows channels from what could take a factor to the layers that consume them."""

    def __init__(self, graph: ir.Graph, composites: Iterable[Composite]) -> None:
        self._graph = graph
        # A runtime knows these by their constants, and no longer if one has a number a channel.
        self._whole = {node for composite in composites for node in composite.nodes}
        self._layers: dict[int, WeightedLayer | None] = {}

    def from_producer(self, node: ir.Node) -> Iterator[Site]:
        """Yield the site whose factor a node takes, if it can."""
        if node.domain != "" or len(node.outputs) < 1 or node in self._whole:
            return
        if not self._leads_to_layer(node.outputs[0]):
            return
        site = Site()
        layout = self._take(node, site)
        if layout is None or not self._follow(node.outputs[0], layout, site):
            return
        sizes = {layer.inputs for layer in site.consumers}
        if site.layer is not None:
            sizes.add(site.layer.outputs)
        if len(sizes) == 1 and all(factor.fits(site.channels) for factor in site.factors):
            yield site

    def without_producer(self, served: set[int], own_inputs: Collection[str]) -> list[Site]:
        """Return a site for each tensor that other layers consume.

        Layers that quantize their input for themselves get one each: the factors fit better, and
        onnxruntime on x86 fuses a signed pair only where one layer reads it.
        """
        sites: dict[ir.Value | ir.Node, Site] = {}
        for node in self._graph:
            layer = self._consumer(node) if id(node) not in served else None
            value = node.inputs[0] if layer is not None else None
            if layer is not None and value is not None:
                key = node if value.name in own_inputs else value
                sites.setdefault(key, Site(is_own=key is node)).consumers.append(layer)
        return [s for s in sites.values() if len({layer.inputs for layer in s.consumers}) == 1]

    def _layer(self, node: ir.Node) -> WeightedLayer | None:
        if id(node) not in self._layers:
            self._layers[id(node)] = find_layer(node, hold=False)
        return self._layers[id(node)]

    def _consumer(self, node: ir.Node) -> WeightedLayer | None:
        layer = self._layer(node) if is_matrix(node) else None
        return None if layer is None or layer.has_shared_weight else layer

    def _leads_to_layer(self, value: ir.Value) -> bool:
        """Whether following is worth copying weights for."""
        return any(
            is_matrix(use.node)
            or (_may_pass(use.node) and self._leads_to_layer(use.node.outputs[0]))
            for use in value.uses()
        )

    def _take(self, node: ir.Node, site: Site) -> ChannelLayout | None:
        """Enter what takes the factor into the site; return where its channels lie."""
        shape = node.outputs[0].shape
        last = _LAST if not shape else ChannelLayout(len(shape) - 1, len(shape))
        if node.op_type == "LayerNormalization":
            axis = node.attributes.get_int("axis", -1)
            if axis not in (-1, last.axis):
                return None
            given = [i for i in (1, 2) if i < len(node.inputs) and node.inputs[i] is not None]
            site.factors += [Factor(node, index, last) for index in given]
            return last
        if node.op_type in SCALINGS:
            indices = [i for i, value in enumerate(node.inputs) if is_constant(value)]
            if len(indices) != 1:
                return None
            divides = node.op_type == "Div" and indices[0] == 1
            site.factors.append(Factor(node, indices[0], last, divides))
            return last
        site.layer = self._layer(node)
        if site.layer is None or site.layer.has_shared_weight:
            return None
        unknown = _LAST if site.layer.operator.bias is None else None
        return site.layer.output_layout() or unknown

    def _follow(self, value: ir.Value, layout: ChannelLayout, site: Site) -> bool:
        """Enter all that consumes the channels; say whether all of it can take the factor."""
        uses = value.uses()
        if value.is_graph_output() or not uses:
            return False
        return all(self._use(use.node, use.idx, layout, site) for use in uses)

    def _use(self, node: ir.Node, index: int, layout: ChannelLayout, site: Site) -> bool:
        if node.graph is not self._graph or node.domain != "":
            return False
        if node.op_type == "Shape":
            return True
        if is_matrix(node):
            layer = self._consumer(node) if index == 0 else None
            if layer is None or not layer.consumes(layout, layer.inputs):
                return False
            site.consumers.append(layer)
            return True
        if node.op_type in ("Add", "Sub"):
            other = 1 - index
            offset = constant_shape(node.inputs[other])
            if offset is None or (layout != _LAST and len(offset) > layout.rank):
                return False
            site.factors.append(Factor(node, other, layout))
            return self._follow(node.outputs[0], layout, site)
        passes = _passes(node) and index == 0
        if layout == _LAST and node.op_type in _MOVING:
            return False
        after = propagate(node, layout) if passes else None
        bounded = node.op_type == "Clip" and clip_bounds(node)[1] is not None
        return after is not None and not bounded and self._follow(node.outputs[0], after, site)


def _may_pass(node: ir.Node) -> bool:
    if node.op_type in ("Add", "Sub"):
        return any(is_constant(value) for value in node.inputs)
    return _passes(node)


def _passes(node: ir.Node) -> bool:
    return node.op_type in FUSED_ACTIVATIONS or node.op_type in _MOVING


def is_matrix(node: ir.Node) -> bool:
    """Whether a node is a linear layer whose weight is a matrix."""
    row = linear_operator(node)
    return row is not None and row.is_matrix
