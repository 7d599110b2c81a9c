"""The first convolution of networks that normalize before they activate (DenseNet).

Its channels go through pooling and concatenation to BatchNormalizations, which cannot be folded
into it and take any factor on a channel.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.equalize._quark_math import stem_factors
from lowbit.equalize.layers import find_layer, give_constant
from lowbit.graph.constants import constant
from lowbit.numerics.formats import Floats
from lowbit.ops import moves_exactly

_PASSING = frozenset("Relu MaxPool AveragePool GlobalAveragePool Identity Pad".split())
_GAMMA, _MEAN = 1, 3


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader:
    """A BatchNormalization and the first of its channels that comes from the stem."""

    node: ir.Node
    start: int


def equalize_stem(graph: ir.Graph) -> bool:
    """Equalize the first convolution, if everything that reads it can take it. Changes ``graph``."""
    stem = next((node for node in graph if _is_stem(node)), None)
    layer = find_layer(stem) if stem is not None else None
    if stem is None or layer is None:
        return False
    readers = _find_readers(stem.outputs[0], 0)
    if not readers:
        return False
    factors = stem_factors(layer.kernel)
    layer.scale_outputs(factors)
    layer.write(graph)
    for reader in readers:
        _scale(graph, reader, _GAMMA, np.reciprocal(factors))
        _scale(graph, reader, _MEAN, factors)
    return True


def _is_stem(node: ir.Node) -> bool:
    if node.op_type != "Conv" or node.attributes.get_int("group", 1) != 1:
        return False
    source = node.inputs[0]
    return source is not None and source.is_graph_input()


def _find_readers(value: ir.Value, start: int) -> list[_Reader] | None:
    """Return all that read the channels in the end, or ``None`` if one is no normalization."""
    if value.is_graph_output() or not value.uses():
        return None
    readers: list[_Reader] = []
    for node, index in value.uses():
        found = _follow(node, index, start)
        if found is None:
            return None
        readers += found
    return readers


def _follow(node: ir.Node, index: int, start: int) -> list[_Reader] | None:
    if node.op_type == "Concat" and node.attributes.get_int("axis", 0) == 1:
        before = [_channels(value) for value in node.inputs[:index]]
        if any(count is None for count in before):
            return None
        return _find_readers(node.outputs[0], start + sum(count or 0 for count in before))
    if index != 0 or node.domain != "":
        return None
    if node.op_type == "BatchNormalization":
        parameters = [constant(node.inputs[k]) for k in (_GAMMA, _MEAN)]
        training = node.attributes.get_int("training_mode", 0)
        return None if training or any(p is None for p in parameters) else [_Reader(node, start)]
    if node.op_type in _PASSING and len(node.outputs) == 1 and _fills_with_zero(node):
        return _find_readers(node.outputs[0], start)
    return None


def _fills_with_zero(node: ir.Node) -> bool:
    return node.op_type != "Pad" or moves_exactly(node)


def _channels(value: ir.Value | None) -> int | None:
    if value is None or value.shape is None or len(value.shape) < 2:
        return None
    count = value.shape[1]
    return count if isinstance(count, int) else None


def _scale(graph: ir.Graph, reader: _Reader, index: int, factors: Floats) -> None:
    data = np.array(constant(reader.node.inputs[index]))
    data[reader.start : reader.start + len(factors)] *= factors
    give_constant(graph, reader.node, index, data)
