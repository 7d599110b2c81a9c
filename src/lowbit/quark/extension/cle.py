"""AMD Quark's cross-layer equalization, to the last bit: factors, patterns, and the stem.

After Nagel et al. 2019 (arXiv:1906.04721), equations 9 to 11, with two additions of Quark's: the
bias counts as one more weight, and small weights are left alone. A pair is two Conv or Gemm with only
Relu, LeakyRelu, Pad or ReduceMean between them; a triple is Conv, depthwise Conv, Conv with only Relu
between them. Whatever has a second consumer is skipped. The stem is the first convolution of
networks that normalize before they activate (DenseNet).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from typing import ClassVar

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.config.transforms import FloatTransform
from lowbit.errors import ConfigError
from lowbit.graph.editing import constant, replace_constant, replace_node
from lowbit.numerics.formats import FloatArray
from lowbit.ops.traits import clip_bounds, moves_exactly, reduced_axes
from lowbit.quark.extension.cle_factors import pair_factors, stem_factors, triple_factors
from lowbit.transforms.implementation import Context, TransformedModel
from lowbit.transforms.layers import WeightedLayer, find_layer


class QuarkCle(
    FloatTransform,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="quark-cle",
):
    """AMD Quark's cross-layer equalization, to the last bit.

    Attributes:
        steps: How often all patterns are gone through; -1: until the weights stop changing.
        weight_threshold: A channel whose two largest weights add up to less keeps its weights.
        append_bias: Whether a layer's bias counts as one of its weights.
        use_threshold: Whether ``weight_threshold`` applies.
        total_layer_diff_threshold: With ``steps`` -1, the change at which to stop: the mean over
            each layer's weights, added up over all layers.
        replace_relu6: Turn every Clip from 0 to 6 into Relu first. **This changes what the model
            computes**; it is here because Quark has it.
    """

    is_optional: ClassVar[bool] = False
    reads_data: ClassVar[bool] = False

    steps: int = 1
    weight_threshold: float = 0.5
    append_bias: bool = True
    use_threshold: bool = True
    total_layer_diff_threshold: float = 2e-7
    replace_relu6: bool = False

    def __post_init__(self) -> None:
        if self.steps < -1:
            raise ConfigError(
                f"equalization.steps is {self.steps}; give how many, or -1 for until it settles"
            )

    def implementation(self) -> QuarkEqualization:
        """Return what does the work."""
        return QuarkEqualization()


class QuarkEqualization:
    """Quark's equalization as a transform of a graph."""

    def applies(self, model: ir.Model, config: QuarkCle) -> bool:
        """Whether there is anything to equalize: it is done in any case."""
        del model, config
        return True

    def apply(self, model: ir.Model, config: QuarkCle, context: Context) -> TransformedModel:
        """Return the equalized model; what is not quantized is not equalized."""
        return equalize_like_quark(model, config, context.float_nodes(model))


_KEEP_CHANNELS = frozenset("Relu MaxPool AveragePool GlobalAveragePool Identity Pad".split())
_GAMMA, _MEAN = 1, 3


@dataclasses.dataclass(frozen=True, slots=True)
class _Consumer:
    """A BatchNormalization and the first of its channels that comes from the stem."""

    node: ir.Node
    start: int


def equalize_stem(graph: ir.Graph) -> bool:
    """Equalize the first convolution, if all its consumers can take the factors. Changes ``graph``."""
    stem = next((node for node in graph if _is_stem(node)), None)
    layer = find_layer(stem) if stem is not None else None
    if stem is None or layer is None:
        return False
    consumers = _find_consumers(stem.outputs[0], 0)
    if not consumers:
        return False
    factors = stem_factors(layer.kernel)
    layer.scale_outputs(factors)
    layer.write(graph)
    for consumer in consumers:
        _scale(graph, consumer, _GAMMA, np.reciprocal(factors))
        _scale(graph, consumer, _MEAN, factors)
    return True


def _is_stem(node: ir.Node) -> bool:
    if node.op_type != "Conv" or node.attributes.get_int("group", 1) != 1:
        return False
    source = node.inputs[0]
    return source is not None and source.is_graph_input()


def _find_consumers(value: ir.Value, start: int) -> list[_Consumer] | None:
    """Return all that read the channels in the end, or ``None`` if one is no normalization."""
    if value.is_graph_output() or not value.uses():
        return None
    consumers: list[_Consumer] = []
    for node, index in value.uses():
        found = _follow(node, index, start)
        if found is None:
            return None
        consumers += found
    return consumers


def _follow(node: ir.Node, index: int, start: int) -> list[_Consumer] | None:
    if node.op_type == "Concat" and node.attributes.get_int("axis", 0) == 1:
        before = [_channels(value) for value in node.inputs[:index]]
        if any(count is None for count in before):
            return None
        return _find_consumers(node.outputs[0], start + sum(count or 0 for count in before))
    if index != 0 or node.domain != "":
        return None
    if node.op_type == "BatchNormalization":
        parameters = [constant(node.inputs[k]) for k in (_GAMMA, _MEAN)]
        training = node.attributes.get_int("training_mode", 0)
        return None if training or any(p is None for p in parameters) else [_Consumer(node, start)]
    if node.op_type in _KEEP_CHANNELS and len(node.outputs) == 1 and _fills_with_zero(node):
        return _find_consumers(node.outputs[0], start)
    return None


def _fills_with_zero(node: ir.Node) -> bool:
    return node.op_type != "Pad" or moves_exactly(node)


def _channels(value: ir.Value | None) -> int | None:
    if value is None or value.shape is None or len(value.shape) < 2:
        return None
    count = value.shape[1]
    return count if isinstance(count, int) else None


def _scale(graph: ir.Graph, consumer: _Consumer, index: int, factors: FloatArray) -> None:
    data = np.array(constant(consumer.node.inputs[index]))
    data[consumer.start : consumer.start + len(factors)] *= factors
    replace_constant(graph, consumer.node, index, data)


Pattern = tuple[WeightedLayer, ...]

_BETWEEN_PAIRS = frozenset("Relu LeakyRelu Pad ReduceMean".split())
_BETWEEN_TRIPLES = frozenset({"Relu"})
# Adaptive steps end when the change has been the same this often.
_PATIENCE = 20


def equalize_like_quark(
    model: ir.Model, config: QuarkCle, keep: Container[str] = ()
) -> TransformedModel:
    """Return a copy of ``model`` with Quark's equalization done.

    Nodes whose names are in ``keep`` are not quantized, and so not equalized.
    """
    model = model.clone()
    notes = []
    if config.replace_relu6 and (clips := _replace_relu6(model.graph)):
        notes.append(
            f"{clips} Clip(0, 6) became Relu, as asked for: the float model computes something "
            "else now, by as much as its activations exceed 6"
        )
    stem = equalize_stem(model.graph)
    layers = _find_layers(model.graph, keep)
    patterns = find_patterns(layers)
    steps = _equalize(patterns, list(layers.values()), config)
    for layer in layers.values():
        if any(layer in pattern for pattern in patterns):
            layer.write(model.graph)
    notes.insert(0, _summary(patterns, steps, stem=stem))
    return TransformedModel(model, tuple(notes))


def find_patterns(layers: dict[ir.Node, WeightedLayer]) -> list[Pattern]:
    """Return pairs and triples in Quark's order, in which the first also comes last."""
    patterns: list[Pattern] = []
    for head in layers.values():
        for pattern in (_find_pair(head, layers), _find_triple(head, layers)):
            if pattern is None:
                continue
            if not patterns:
                patterns.append(pattern)
            longer = len(patterns[-1]) > len(pattern)
            patterns.insert(len(patterns) if longer else -1, pattern)
    return patterns


def _find_layers(graph: ir.Graph, keep: Container[str]) -> dict[ir.Node, WeightedLayer]:
    layers = {}
    for node in graph:
        if node.op_type not in ("Conv", "Gemm") or node.name in keep:
            continue
        layer = find_layer(node)
        if layer is not None and (_is_dense(layer) or _is_depthwise(layer)):
            layers[node] = layer
    return layers


def _is_dense(layer: WeightedLayer) -> bool:
    return int(layer.kernel.shape[0]) == 1


def _is_depthwise(layer: WeightedLayer) -> bool:
    return tuple(layer.kernel.shape[1:3]) == (1, 1)


def _find_pair(head: WeightedLayer, layers: dict[ir.Node, WeightedLayer]) -> Pattern | None:
    tail = _next_layer(head, layers, _BETWEEN_PAIRS)
    return None if tail is None else (head, tail)


def _find_triple(head: WeightedLayer, layers: dict[ir.Node, WeightedLayer]) -> Pattern | None:
    middle = _next_layer(head, layers, _BETWEEN_TRIPLES)
    if middle is None or _is_dense(middle) or not _is_dense(head):
        return None
    last = _next_layer(middle, layers, _BETWEEN_TRIPLES)
    if last is None or not _is_dense(last):
        return None
    pattern = (head, middle, last)
    return pattern if all(layer.node.op_type == "Conv" for layer in pattern) else None


def _next_layer(
    layer: WeightedLayer, layers: dict[ir.Node, WeightedLayer], between: frozenset[str]
) -> WeightedLayer | None:
    """Return the one layer that reads this one's channels, if nothing else does."""
    value = layer.node.outputs[0]
    while (node := _sole_consumer(value)) is not None and node not in layers:
        if node.op_type not in between or not _keeps_channels(node):
            return None
        value = node.outputs[0]
    found = layers.get(node) if node is not None else None
    return found if found is not None and found.inputs == layer.outputs else None


def _sole_consumer(value: ir.Value) -> ir.Node | None:
    """Return the node that reads the value as its data, if there is just this one."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    ((node, index),) = uses
    return node if index == 0 and node.domain == "" else None


def _keeps_channels(node: ir.Node) -> bool:
    """Whether factors on channels pass the node unchanged; Quark does not ask."""
    if node.op_type == "Pad":
        return moves_exactly(node)
    if node.op_type == "ReduceMean":
        axes = reduced_axes(node)
        return axes is not None and not {0, 1} & set(axes)
    return True


def _equalize(patterns: list[Pattern], layers: list[WeightedLayer], config: QuarkCle) -> int:
    """Go through all patterns as often as asked for; return how often. Changes ``layers``."""
    if not patterns:
        return 0
    if config.steps >= 0:
        for _ in range(config.steps):
            _step(patterns, config)
        return config.steps
    steps, same, last = 0, 0, np.inf
    while same < _PATIENCE and last > config.total_layer_diff_threshold:
        before = [layer.weight.copy() for layer in layers]
        _step(patterns, config)
        pairs = zip(layers, before, strict=True)
        change = sum(float(np.abs(layer.weight - old).mean()) for layer, old in pairs)
        same = same + 1 if change == last else 0
        last, steps = change, steps + 1
    return steps


def _step(patterns: list[Pattern], config: QuarkCle) -> None:
    for pattern in patterns:
        if len(pattern) == 2:
            _equalize_pair(*pattern, config)
        else:
            _equalize_triple(*pattern)


def _equalize_pair(head: WeightedLayer, tail: WeightedLayer, config: QuarkCle) -> None:
    factors = pair_factors(
        head.kernel,
        head.bias if config.append_bias else None,
        tail.kernel,
        threshold=config.weight_threshold if config.use_threshold else None,
    )
    head.scale_outputs(factors)
    tail.scale_inputs(_inverse(factors))


def _equalize_triple(first: WeightedLayer, depthwise: WeightedLayer, last: WeightedLayer) -> None:
    before, after = triple_factors(first.kernel, depthwise.kernel, last.kernel)
    first.scale_outputs(_inverse(before))
    depthwise.scale_inputs(before)
    depthwise.scale_outputs(_inverse(after))
    last.scale_inputs(after)


def _inverse(factors: FloatArray) -> FloatArray:
    return np.reciprocal(factors)


def _replace_relu6(graph: ir.Graph) -> int:
    """Turn Clip(0, 6) into Relu; return how many. Changes ``graph``."""
    clips = [
        node
        for node in graph
        if node.op_type == "Clip" and node.domain == "" and clip_bounds(node) == (0.0, 6.0)
    ]
    for clip in clips:
        replace_node(graph, clip, [ir.node("Relu", [clip.inputs[0]])])
    return len(clips)


def _summary(patterns: list[Pattern], steps: int, *, stem: bool) -> str:
    distinct = {tuple(id(layer) for layer in pattern): len(pattern) for pattern in patterns}
    sizes = list(distinct.values())
    text = (
        f"equalized like Quark: {sizes.count(2)} pairs and {sizes.count(3)} triples of layers, "
        f"{steps} {'step' if steps == 1 else 'steps'}"
    )
    return f"{text}; and the first convolution" if stem else text
