"""Where SmoothQuant can move factors: from what writes channels to the MatMul and Gemm reading them.

The nearest node before a layer that can be scaled for each channel takes the factor: a fused
LayerNormalization, a product with a constant (which ends a normalization written out, and an exact
Gelu), or a layer. In between there may be sums with constants, activations without a bend elsewhere
than at zero, and transposition. All that reads the channels must be such layers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import constant, constant_shape, is_constant
from lowbit.ops.channels import Place, carry
from lowbit.ops.traits import clip_bounds
from lowbit.transforms._cross_layer_math import DoubleArray, output_peaks
from lowbit.transforms._smooth_math import Written
from lowbit.transforms.channel_groups import reads, written
from lowbit.transforms.layers import Layer, find_layer, give_constant, has_shared_weight

READERS = ("MatMul", "Gemm")
_PASSING = ("Relu", "LeakyRelu", "PRelu", "Clip", "Transpose", "Squeeze")
_MOVING = ("Transpose", "Squeeze")

# Counted from the end, axis minus rank, this is the last axis of a tensor of any rank.
_LAST = Place(-1, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Factor:
    """A constant to be divided by s channel by channel, or multiplied where it ``divides`` itself.

    ``place`` is where the channels of the tensor lie that it is combined with.
    """

    node: ir.Node
    index: int
    place: Place
    divides: bool = False

    def fits(self, channels: int) -> bool:
        """Whether it is one number, or has one for each channel."""
        value = self.node.inputs[self.index]
        shape = constant_shape(value)
        if shape is None or value is None or value.dtype != ir.DataType.FLOAT:
            return False
        axis = self.place.axis - (self.place.rank - len(shape))
        return math.prod(shape) == 1 or (0 <= axis < len(shape) and shape[axis] == channels)

    def numbers(self, channels: int) -> DoubleArray:
        """Return the largest absolute number for each channel."""
        data = np.abs(np.asarray(constant(self.node.inputs[self.index]), np.float64))
        if data.size == 1:
            return np.full(channels, data.item())
        axis = self.place.axis - (self.place.rank - data.ndim)
        return np.asarray(np.moveaxis(data, axis, 0).reshape(channels, -1).max(axis=1))

    def scale(self, graph: ir.Graph, s: DoubleArray) -> None:
        """Put s in. Changes ``graph``."""
        data = np.asarray(constant(self.node.inputs[self.index]))
        column = s.reshape(-1, *[1] * (self.place.rank - 1 - self.place.axis))
        after = data * column if self.divides else data / column
        give_constant(graph, self.node, self.index, after.astype(np.float32))


@dataclasses.dataclass(slots=True, eq=False)
class Site:
    """Channels that can be smoothed: who reads them, and what takes the factor.

    Nothing does where there is neither a ``layer`` nor a first of ``factors``.
    """

    readers: list[Layer] = dataclasses.field(default_factory=list)
    layer: Layer | None = None
    factors: list[Factor] = dataclasses.field(default_factory=list)

    @property
    def channels(self) -> int:
        """How many there are."""
        return self.readers[0].inputs

    def written(self, *, per_channel: bool) -> Written | None:
        """Return what is rounded where the channels are written; ``None`` if s does not matter."""
        if self.layer is not None:
            kernel = self.layer.kernel
            powers = np.square(kernel, dtype=np.float64).mean(axis=(2, 3)).reshape(-1)
            peaks = np.asarray(output_peaks(kernel), np.float64)
            return None if per_channel else Written(peaks, powers)
        if not self.factors or self.factors[0].divides:
            return None
        peaks = self.factors[0].numbers(self.channels)
        return Written(peaks, np.square(peaks))


def find_sites(graph: ir.Graph, *, insert: bool = False) -> list[Site]:
    """Return the sites of a graph in order; with ``insert`` those also that nothing takes."""
    if not any(node.op_type in READERS for node in graph):
        return []
    search = _Search(graph)
    found = [site for node in graph for site in search.from_taker(node)]
    if insert:
        taken = {id(layer.node) for site in found for layer in site.readers}
        found += search.without_taker(taken)
    return found


class _Search:
    """Follows channels from what could take a factor to the layers that read them."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._layers: dict[int, Layer | None] = {}

    def from_taker(self, node: ir.Node) -> Iterator[Site]:
        """Yield the site whose factor a node takes, if it can."""
        if node.domain != "" or len(node.outputs) < 1 or not self._leads_to_layer(node.outputs[0]):
            return
        site = Site()
        place = self._take(node, site)
        if place is None or not self._follow(node.outputs[0], place, site):
            return
        sizes = {layer.inputs for layer in site.readers}
        if site.layer is not None:
            sizes.add(site.layer.outputs)
        if len(sizes) == 1 and all(factor.fits(site.channels) for factor in site.factors):
            yield site

    def without_taker(self, taken: set[int]) -> list[Site]:
        """Return a site for each tensor that other layers read."""
        sites: dict[ir.Value, Site] = {}
        for node in self._graph:
            layer = self._reader(node) if id(node) not in taken else None
            value = node.inputs[0] if layer is not None else None
            if layer is not None and value is not None:
                sites.setdefault(value, Site()).readers.append(layer)
        return [s for s in sites.values() if len({layer.inputs for layer in s.readers}) == 1]

    def _layer(self, node: ir.Node) -> Layer | None:
        if id(node) not in self._layers:
            self._layers[id(node)] = find_layer(node)
        return self._layers[id(node)]

    def _reader(self, node: ir.Node) -> Layer | None:
        layer = self._layer(node) if node.op_type in READERS else None
        return None if layer is None or has_shared_weight(layer) else layer

    def _leads_to_layer(self, value: ir.Value) -> bool:
        """Whether following is worth copying weights for."""
        return any(
            use.node.op_type in READERS
            or (_may_pass(use.node) and self._leads_to_layer(use.node.outputs[0]))
            for use in value.uses()
        )

    def _take(self, node: ir.Node, site: Site) -> Place | None:
        """Enter what takes the factor into the site; return where its channels lie."""
        shape = node.outputs[0].shape
        last = _LAST if not shape else Place(len(shape) - 1, len(shape))
        if node.op_type == "LayerNormalization":
            axis = node.attributes.get_int("axis", -1)
            if axis not in (-1, last.axis):
                return None
            given = [i for i in (1, 2) if i < len(node.inputs) and node.inputs[i] is not None]
            site.factors += [Factor(node, index, last) for index in given]
            return last
        if node.op_type in ("Mul", "Div"):
            indices = [i for i, value in enumerate(node.inputs) if is_constant(value)]
            if len(indices) != 1:
                return None
            divides = node.op_type == "Div" and indices[0] == 1
            site.factors.append(Factor(node, indices[0], last, divides))
            return last
        site.layer = self._layer(node)
        if site.layer is None or has_shared_weight(site.layer):
            return None
        return written(site.layer) or (_LAST if node.op_type == "MatMul" else None)

    def _follow(self, value: ir.Value, place: Place, site: Site) -> bool:
        """Enter all that reads the channels; say whether all of it can take the factor."""
        uses = value.uses()
        if value.is_graph_output() or not uses:
            return False
        return all(self._use(use.node, use.idx, place, site) for use in uses)

    def _use(self, node: ir.Node, index: int, place: Place, site: Site) -> bool:
        if node.graph is not self._graph or node.domain != "":
            return False
        if node.op_type == "Shape":
            return True
        if node.op_type in READERS:
            layer = self._reader(node) if index == 0 else None
            if layer is None or not reads(layer, place, layer.inputs):
                return False
            site.readers.append(layer)
            return True
        if node.op_type in ("Add", "Sub"):
            other = 1 - index
            offset = constant_shape(node.inputs[other])
            if offset is None or (place != _LAST and len(offset) > place.rank):
                return False
            site.factors.append(Factor(node, other, place))
            return self._follow(node.outputs[0], place, site)
        passes = node.op_type in _PASSING and index == 0
        if place == _LAST and node.op_type in _MOVING:
            return False
        after = carry(node, place) if passes else None
        bounded = node.op_type == "Clip" and clip_bounds(node)[1] is not None
        return after is not None and not bounded and self._follow(node.outputs[0], after, site)


def _may_pass(node: ir.Node) -> bool:
    if node.op_type in ("Add", "Sub"):
        return any(is_constant(value) for value in node.inputs)
    return node.op_type in _PASSING
