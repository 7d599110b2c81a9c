"""High-bias absorption (Nagel et al. 2019, section 4.1.3).

Where a channel never falls below c > 0 before a Relu, relu(h) = relu(h - c) + c: c moves from the
bias before it into the biases after, and the activation's range becomes smaller by c. On other
data a channel may fall below c, and then loses what it is below.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import only_consumer
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array
from lowbit.numerics.formats import DoubleArray
from lowbit.ops.channels import ChannelLayout
from lowbit.transforms.channel_statistics import reduce_channels
from lowbit.transforms.implementation import Context
from lowbit.transforms.layers import WeightedLayer, find_biased_layer


@dataclasses.dataclass(frozen=True, slots=True)
class _Pair:
    """A layer with a bias, and the layers that read its Relu."""

    producer: WeightedLayer
    consumers: list[WeightedLayer]
    layout: ChannelLayout


def absorb(model: ir.Model, headroom: float, context: Context) -> str:
    """Move what biases can give away into the next layer's biases, and describe how much that was. Changes ``model``."""
    pairs = {tensor_name(pair.producer.node.outputs[0]): pair for pair in _find(model.graph)}

    def of(name: str, array: Array) -> DoubleArray:
        axis = pairs[name].layout.axis
        others = tuple(k for k in range(array.ndim) if k != axis)
        return np.asarray(array.min(axis=others, initial=np.inf), np.float64)

    least: dict[str, DoubleArray] = {}
    if pairs and context.data is not None:
        least = reduce_channels(model, list(pairs), context.data, of, np.minimum, context.progress)
    moved = sum(_move(model.graph, pairs[name], low / headroom) for name, low in least.items())
    total = sum(pair.producer.outputs for pair in pairs.values())
    return f"absorbed the bias of {moved} channels of {total} before a Relu"


def _find(graph: ir.Graph) -> list[_Pair]:
    layers = {id(n): found for n in graph if (found := find_biased_layer(n)) is not None}
    pairs = []
    for node in graph:
        producer = layers.get(id(node))
        layout = None if producer is None or producer.bias is None else producer.output_layout()
        relu = only_consumer(node.outputs[0]) if layout is not None else None
        if producer is None or layout is None or relu is None or relu.op_type != "Relu":
            continue
        uses = relu.outputs[0].uses()
        consumers = [layers.get(id(use.node)) for use in uses if use.idx == 0]
        fit = [
            r
            for r in consumers
            if r and r.consumes(layout, producer.outputs) and r.geometry.meets_all
        ]
        if fit and len(fit) == len(uses) and not relu.outputs[0].is_graph_output():
            pairs.append(_Pair(producer, fit, layout))
    return pairs


def _move(graph: ir.Graph, pair: _Pair, low: DoubleArray) -> int:
    """Move the bias of one pair; return of how many channels. Changes ``graph``."""
    c = np.where(np.isfinite(low) & (low > 0), low, 0).astype(np.float32)
    count = int((c > 0).sum())
    if count == 0:
        return 0
    pair.producer.add_to_bias(graph, -c)
    for consumer in pair.consumers:
        kernel = consumer.kernel.astype(np.float64)
        shift = np.einsum("goir,gi->go", kernel, c.reshape(kernel.shape[0], -1)).reshape(-1)
        consumer.add_to_bias(graph, shift)
    return count
