"""Gather layer targets inside the float model, so that only a few positions leave onnxruntime.

To hand whole outputs out takes longer than to compute them, and several layers can then be run at
once without holding what they give.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import insert_after_source
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed
from lowbit.ops.geometry import ConvLayer, LinearLayer, MatrixLayer, Positions
from lowbit.refine.layers import RefinedLayer
from lowbit.refine.samples import LayerTarget

Size = int | str
"""A number, or the name of a size that a sample decides."""


_GOLDEN = (math.sqrt(5) - 1) / 2


def spread_positions(count: int, wanted: int, sample: int) -> Positions:
    """Return positions, each once, that are spread evenly, as are those of all samples together.

    Each is the golden section of all further than the one before, and a sample goes on where the
    last one ended: no part of an image is looked at more often than another.
    """
    wanted = min(wanted, count)
    step = _coprime(count)
    return (np.arange(sample * wanted, (sample + 1) * wanted) * step) % max(count, 1)


@functools.cache
def _coprime(count: int) -> int:
    """Return the number nearest to the golden section of ``count`` that has no divisor with it."""
    middle = round(count * _GOLDEN)
    near = (middle + sign * off for off in range(count + 1) for sign in (1, -1))
    return next((n for n in near if n > 0 and math.gcd(n, count) == 1), 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Gathered:
    """One layer's output: fed positions ``at``, given ``values`` at them."""

    layer: LinearLayer
    sizes: tuple[Size, ...]
    at: str
    values: str

    def shape(self, known: Mapping[str, int]) -> tuple[int, ...]:
        """Return the output's shape for a sample with known sizes."""
        return tuple(known[size] if isinstance(size, str) else size for size in self.sizes)

    def fed(self, at: Positions, shape: Sequence[int]) -> Positions:
        """Return what is fed for positions: rows, or where in each sample of a batch they are."""
        return at if _in_rows(self.layer) else at % math.prod(shape[2:])

    def target(self, at: Positions, shape: tuple[int, ...], values: Array) -> LayerTarget:
        """Return the target that one sample's values make."""
        layer = self.layer
        if _in_rows(layer):
            columns = values.T
        elif shape[0] == 1:
            columns = values
        else:
            by_sample = values.reshape(*shape[:2], len(at))
            columns = by_sample[at // math.prod(shape[2:]), :, np.arange(len(at))].T
        targets = np.ascontiguousarray(columns).reshape(layer.groups, layer.outputs, len(at))
        return LayerTarget(targets, at, shape)


def with_gathering(
    model: ir.Model, layers: Sequence[RefinedLayer]
) -> tuple[ir.Model, dict[str, Gathered]]:
    """Return a copy of a model that also gathers the targets of layers, and these by node.

    Layers whose output has a size that neither the graph nor the inputs tell are left out.
    """
    model = model.clone()
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    told = {name for value in model.graph.inputs for name in _names(value) if name}
    found = {}
    for layer in layers:
        sizes = _sizes(values[layer.output], layer.geometry, told)
        if sizes is not None:
            found[layer.node] = _gather(model.graph, values[layer.output], layer.geometry, sizes)
    return model, found


def known_sizes(model: ir.Model, feed: Feed) -> dict[str, int]:
    """Return the sizes that a sample decides, by name."""
    return {
        name: size
        for value in model.graph.inputs
        if value.name is not None and value.name in feed
        for name, size in zip(_names(value), np.asarray(feed[value.name]).shape, strict=False)
        if name
    }


def _names(value: ir.Value) -> list[str]:
    """Return the names of an input's sizes, empty where it is a number or has none."""
    sizes = () if value.shape is None else value.shape
    return ["" if isinstance(size, int) else size.value or "" for size in sizes]


def _sizes(value: ir.Value, layer: LinearLayer, told: Collection[str]) -> tuple[Size, ...] | None:
    """Return the sizes of an output whose positions lie in rows or columns, if they will be known."""
    if (
        value.shape is None
        or len(value.shape) < 2
        or not isinstance(layer, ConvLayer | MatrixLayer)
    ):
        return None
    sizes = tuple(size if isinstance(size, int) else size.value or "" for size in value.shape)
    if any(size not in told if isinstance(size, str) else size < 1 for size in sizes):
        return None
    return sizes if sizes[-1 if _in_rows(layer) else 1] == layer.channels else None


def _in_rows(layer: LinearLayer) -> bool:
    """Whether the output has its channels last."""
    return isinstance(layer, MatrixLayer)


def _gather(
    graph: ir.Graph, value: ir.Value, layer: LinearLayer, sizes: tuple[Size, ...]
) -> Gathered:
    name = tensor_name(value)
    found = Gathered(layer, sizes, f"{name}/lowbit/at", f"{name}/lowbit/values")
    rows = _in_rows(layer)
    at = ir.Value(name=found.at, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([None]))
    graph.inputs.append(at)
    # A matrix, of which positions are rows, or columns for each channel of each sample. Flatten, since
    # Reshape cannot find out a size where another is zero.
    axis = 0 if rows else 1
    flat_from = {"axis": len(sizes) - 1 if rows else 2}
    flat = _append(graph, "Flatten", [value], f"{name}/lowbit/flat", flat_from)
    _append(graph, "Gather", [flat, at], found.values, {"axis": axis})
    return found


def _append(
    graph: ir.Graph,
    op_type: str,
    inputs: Sequence[ir.Value],
    output: str,
    attributes: dict[str, int] | None = None,
) -> ir.Value:
    node = ir.node(op_type, inputs, attributes, name=output)
    node.outputs[0].name = output
    insert_after_source(graph, inputs[0], node)
    return node.outputs[0]
