"""High-bias absorption (Nagel et al. 2019, section 4.1.3).

Where a channel never falls below c > 0 before a Relu, relu(h) = relu(h - c) + c: c moves from the
bias before it into the biases behind, and the activation's range becomes smaller by c. On other
data a channel may fall below c, and then loses what it is below.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import add_constant
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed
from lowbit.ops.channels import Place
from lowbit.transforms._cross_layer_math import DoubleArray
from lowbit.transforms.channel_groups import reads, written
from lowbit.transforms.channel_statistics import reduce_channels
from lowbit.transforms.layers import Layer, find_layer, give_constant

_LAYERS = ("Conv", "Gemm")
_BIAS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class _Pair:
    """A layer with a bias, and the layers that read its Relu."""

    writer: Layer
    readers: list[Layer]
    place: Place


def absorb(
    model: ir.Model,
    headroom: float,
    data: Iterable[Feed],
    progress: Callable[[int], None] = lambda _: None,
) -> str:
    """Move what biases can give away, and say how much that was. Changes ``model``."""
    pairs = {tensor_name(pair.writer.node.outputs[0]): pair for pair in _find(model.graph)}

    def of(name: str, array: Array) -> DoubleArray:
        axis = pairs[name].place.axis
        others = tuple(k for k in range(array.ndim) if k != axis)
        return np.asarray(array.min(axis=others, initial=np.inf), np.float64)

    least = reduce_channels(model, list(pairs), data, of, np.minimum, progress) if pairs else {}
    moved = sum(_move(model.graph, pairs[name], low / headroom) for name, low in least.items())
    total = sum(pair.writer.outputs for pair in pairs.values())
    return f"absorbed the bias of {moved} channels of {total} before a Relu"


def _find(graph: ir.Graph) -> list[_Pair]:
    layers = {id(n): found for n in graph if n.op_type in _LAYERS and (found := _layer(n))}
    pairs = []
    for node in graph:
        writer = layers.get(id(node))
        place = None if writer is None or writer.bias is None else written(writer)
        relu = _only_reader(node.outputs[0]) if place is not None else None
        if writer is None or place is None or relu is None or relu.op_type != "Relu":
            continue
        uses = relu.outputs[0].uses()
        readers = [layers.get(id(use.node)) for use in uses if use.idx == 0]
        fit = [r for r in readers if r and reads(r, place, writer.outputs) and _sees_all(r)]
        if fit and len(fit) == len(uses) and not relu.outputs[0].is_graph_output():
            pairs.append(_Pair(writer, fit, place))
    return pairs


def _layer(node: ir.Node) -> Layer | None:
    """Return a layer that adds its bias as it is, one number for each channel."""
    if node.op_type == "Gemm" and any(
        node.attributes.get_float(name, 1.0) != 1 for name in ("alpha", "beta")
    ):
        return None
    layer = find_layer(node)
    return layer if layer is None or layer.bias is None or layer.bias.ndim == 1 else None


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = tuple(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _sees_all(layer: Layer) -> bool:
    """Whether every weight meets a number of the input everywhere: not so at padded borders."""
    node = layer.node
    automatic = node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return not automatic and not any(node.attributes.get_ints("pads", ()))


def _move(graph: ir.Graph, pair: _Pair, low: DoubleArray) -> int:
    """Move the bias of one pair; return of how many channels. Changes ``graph``."""
    c = np.where(np.isfinite(low) & (low > 0), low, 0).astype(np.float32)
    count = int((c > 0).sum())
    if count == 0 or pair.writer.bias is None:
        return 0
    pair.writer.bias -= c
    give_constant(graph, pair.writer.node, _BIAS, pair.writer.bias)
    for reader in pair.readers:
        kernel = reader.kernel.astype(np.float64)
        shift = np.einsum("goir,gi->go", kernel, c.reshape(kernel.shape[0], -1)).reshape(-1)
        if reader.bias is None:
            reader.bias = shift.astype(np.float32)
            _give_bias(graph, reader)
        else:
            reader.bias += shift.astype(np.float32)
            give_constant(graph, reader.node, _BIAS, reader.bias)
    return count


def _give_bias(graph: ir.Graph, layer: Layer) -> None:
    if layer.bias is None:
        return
    value = add_constant(graph, f"{layer.node.name}_bias", layer.bias)
    layer.node.resize_inputs(_BIAS + 1)
    layer.node.replace_input_with(_BIAS, value)
