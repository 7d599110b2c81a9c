"""The positions of layers that a detector's outputs depend on.

Hardly any position of an image shows an object, and nobody reads what a detector gives elsewhere. A layer that
is fitted to all positions alike is fitted to the background. So most of the positions that a layer is refined at are
drawn by their sensitivity: the squared gradients of random sums of the outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.gradient_pass import GradientPass
from lowbit.errors import ModelError
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed, session
from lowbit.graph.sharing import sharing_of
from lowbit.ops.geometry import ConvLayer, MatrixLayer, Positions
from lowbit.ops.gradients import OutputPart
from lowbit.refine.layers import RefinedLayer

DrawnPositions = Mapping[tuple[str, int], Positions]
"""The positions of a layer, by its name, in a sample, by its number."""

_SHARE = 0.8
"""The share of positions that are drawn by sensitivity; the others hold the background to the float model."""


def draw_positions(
    model: ir.Model,
    layers: Sequence[RefinedLayer],
    outputs: Sequence[OutputPart],
    feeds: Iterable[Feed],
    wanted: Mapping[str, int],
) -> DrawnPositions:
    """Return positions of convolutions and matrices in each sample, as many of each layer as are ``wanted``.

    Layers are left out whose gradients are not known, and samples of another size than the first.
    The sensitivity is that of ``outputs``.
    """
    written = _written(model, [layer for layer in layers if layer.node in wanted])
    samples = iter(feeds)
    first = next(samples, None)
    if first is None or not written:
        return {}
    made = GradientPass.of(model, outputs, written, first)
    if made is None:
        return {}
    try:
        return dict(_drawn_of_each(made, written, itertools.chain([first], samples), wanted))
    except ModelError:
        # The graph with gradients is lowbit's own: that onnxruntime refuses it is no fault of the model.
        return {}


def _drawn_of_each(
    made: GradientPass,
    layers: Mapping[str, RefinedLayer],
    feeds: Iterator[Feed],
    wanted: Mapping[str, int],
) -> Iterator[tuple[tuple[str, int], Positions]]:
    """Yield the positions of every layer, which is given by the tensor that it writes, in every sample."""
    to, found = made.found.backward, made.found.gradients
    squares = [to.sum(to.node("Mul", g, g), (_axis(layers[n]),)) for n, g in found.items()]
    read = made.read(squares)
    first = next(feeds)
    threads = sharing_of(first, made.found.model).threads
    with session(made.found.model, threads=threads, optimize="all", name="gradients") as running:
        for number, feed in enumerate(itertools.chain([first], feeds)):
            if not made.fits(feed):
                continue
            squared = running.run(read, made.seeded(feed, number))
            for name, array in zip(found, squared, strict=True):
                node = layers[name].node
                yield (node, number), _drawn(array, wanted[node], (number, *node.encode()))


def _written(model: ir.Model, layers: Sequence[RefinedLayer]) -> dict[str, RefinedLayer]:
    """Return the layers whose outputs have positions, by the tensor that they write."""
    nodes = {node.name: node for node in model.graph}
    return {
        tensor_name(nodes[layer.node].outputs[0]): layer
        for layer in layers
        if isinstance(layer.geometry, ConvLayer | MatrixLayer) and layer.node in nodes
    }


def _axis(layer: RefinedLayer) -> int:
    """Return where the channels of a layer's output lie."""
    return -1 if isinstance(layer.geometry, MatrixLayer) else 1


def _drawn(sensitivity: Array, wanted: int, seed: Sequence[int]) -> Positions:
    """Return positions in order; one of large sensitivity comes more than once."""
    weight = np.asarray(sensitivity, np.float64).reshape(-1)
    count, total = weight.size, float(weight.sum())
    chance = np.full(count, 1 / max(count, 1))
    if np.isfinite(total) and total > 0:
        chance += _SHARE * (weight / total - chance)
    drawn = np.random.default_rng(seed).choice(count, min(wanted, count), p=chance / chance.sum())
    return np.sort(drawn)
