"""Give layers that share a small weight one each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from lowbit.graph.editing import KEPT, add_constant, constant
from lowbit.graph.naming import tensor_name
from lowbit.ops.linear import has_constant_weight

_ROOM, _SMALL = 1 / 16, 1 << 20
"""All copies together may add this share of a model's constants, and this many bytes in float in any case."""


def separate_shared_weights(graph: ir.Graph) -> None:
    """Give each layer a weight of its own where several read one, as long as the copies are small.

    Each is then rounded for what its own layer reads, and has a scale of its own: a weight that is shared can
    be neither equalized nor reconstructed. And onnxruntime (1.31) does not load integer weights that two layers
    share if it is asked for exact arithmetic (``session.x64quantprecision``).
    """
    room = max(_SMALL, _ROOM * sum(_size(value) for value in graph.initializers.values()))
    for weight, layers in _shared(graph).items():
        room -= _size(weight) * (len(layers) - 1)
        # A weight that is too large is not read, which may be outside the file.
        data = constant(weight) if room >= 0 else None
        if data is None:
            return
        for layer in layers[1:]:
            copy = add_constant(graph, f"{tensor_name(weight)}_{layer.name}", data)
            copy.shape, copy.type = weight.shape, weight.type
            layer.replace_input_with(1, copy)


def has_shared_weights(graph: ir.Graph) -> bool:
    """Whether layers share a weight."""
    return bool(_shared(graph))


def _shared(graph: ir.Graph) -> Mapping[ir.Value, Sequence[ir.Node]]:
    """Return the layers of each weight that several read, those of the smallest weights first."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        weight = node.inputs[1] if has_constant_weight(node) else None
        if weight is not None and not node.meta.get(KEPT):
            found.setdefault(weight, []).append(node)
    several = [(weight, nodes) for weight, nodes in found.items() if len(nodes) > 1]
    return dict(sorted(several, key=lambda row: _size(row[0])))


def _size(value: ir.Value) -> int:
    return value.const_value.nbytes if value.const_value is not None else 0
