"""AMD Quark's cross-layer equalization: which layers, in which order, how often.

A pair is two Conv or Gemm with only Relu, LeakyRelu, Pad or ReduceMean between them; a triple is
Conv, depthwise Conv, Conv with only Relu between them. Whatever has a second reader is left alone.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from lowbit.config.equalize import QuarkCle
from lowbit.equalize._quark_math import pair_factors, triple_factors
from lowbit.equalize.layers import Layer, find_layer
from lowbit.equalize.passing import reduced_axes
from lowbit.equalize.result import Equalized
from lowbit.equalize.stem import equalize_stem
from lowbit.graph.names import answer_to
from lowbit.numerics.formats import Floats
from lowbit.ops import clip_bounds, moves_exactly

Pattern = tuple[Layer, ...]

_BETWEEN_PAIRS = frozenset("Relu LeakyRelu Pad ReduceMean".split())
_BETWEEN_TRIPLES = frozenset({"Relu"})
# Adaptive steps end when the change has been the same this often.
_PATIENCE = 20


def equalize_like_quark(model: ir.Model, config: QuarkCle, keep: Container[str] = ()) -> Equalized:
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
    return Equalized(model, notes=tuple(notes))


def find_patterns(layers: dict[ir.Node, Layer]) -> list[Pattern]:
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


def _find_layers(graph: ir.Graph, keep: Container[str]) -> dict[ir.Node, Layer]:
    layers = {}
    for node in graph:
        if node.op_type not in ("Conv", "Gemm") or node.name in keep:
            continue
        layer = find_layer(node)
        if layer is not None and (_is_dense(layer) or _is_depthwise(layer)):
            layers[node] = layer
    return layers


def _is_dense(layer: Layer) -> bool:
    return int(layer.kernel.shape[0]) == 1


def _is_depthwise(layer: Layer) -> bool:
    return tuple(layer.kernel.shape[1:3]) == (1, 1)


def _find_pair(head: Layer, layers: dict[ir.Node, Layer]) -> Pattern | None:
    tail = _next_layer(head, layers, _BETWEEN_PAIRS)
    return None if tail is None else (head, tail)


def _find_triple(head: Layer, layers: dict[ir.Node, Layer]) -> Pattern | None:
    middle = _next_layer(head, layers, _BETWEEN_TRIPLES)
    if middle is None or _is_dense(middle) or not _is_dense(head):
        return None
    last = _next_layer(middle, layers, _BETWEEN_TRIPLES)
    if last is None or not _is_dense(last):
        return None
    pattern = (head, middle, last)
    return pattern if all(layer.node.op_type == "Conv" for layer in pattern) else None


def _next_layer(
    layer: Layer, layers: dict[ir.Node, Layer], between: frozenset[str]
) -> Layer | None:
    """Return the one layer that reads this one's channels, if nothing else does."""
    value = layer.node.outputs[0]
    while (node := _sole_reader(value)) is not None and node not in layers:
        if node.op_type not in between or not _keeps_channels(node):
            return None
        value = node.outputs[0]
    found = layers.get(node) if node is not None else None
    return found if found is not None and found.inputs == layer.outputs else None


def _sole_reader(value: ir.Value) -> ir.Node | None:
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


def _equalize(patterns: list[Pattern], layers: list[Layer], config: QuarkCle) -> int:
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


def _equalize_pair(head: Layer, tail: Layer, config: QuarkCle) -> None:
    factors = pair_factors(
        head.kernel,
        head.bias if config.append_bias else None,
        tail.kernel,
        threshold=config.weight_threshold if config.use_threshold else None,
    )
    head.scale_outputs(factors)
    tail.scale_inputs(_inverse(factors))


def _equalize_triple(first: Layer, depthwise: Layer, last: Layer) -> None:
    before, after = triple_factors(first.kernel, depthwise.kernel, last.kernel)
    first.scale_outputs(_inverse(before))
    depthwise.scale_inputs(before)
    depthwise.scale_outputs(_inverse(after))
    last.scale_inputs(after)


def _inverse(factors: Floats) -> Floats:
    return np.reciprocal(factors)


def _replace_relu6(graph: ir.Graph) -> int:
    """Turn Clip(0, 6) into Relu; return how many. Changes ``graph``."""
    clips = [
        node
        for node in graph
        if node.op_type == "Clip" and node.domain == "" and clip_bounds(node) == (0.0, 6.0)
    ]
    for clip in clips:
        relu = ir.node("Relu", [clip.inputs[0]], name=clip.name)
        old, new = clip.outputs[0], relu.outputs[0]
        name, new.type, new.shape = old.name, old.type, old.shape
        graph.insert_before(clip, relu)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.remove(clip, safe=True)
        new.name = name
        answer_to(relu, clip.name)
    return len(clips)


def _summary(patterns: list[Pattern], steps: int, *, stem: bool) -> str:
    distinct = {tuple(id(layer) for layer in pattern): len(pattern) for pattern in patterns}
    sizes = list(distinct.values())
    text = (
        f"equalized like Quark: {sizes.count(2)} pairs and {sizes.count(3)} triples of layers, "
        f"{steps} {'step' if steps == 1 else 'steps'}"
    )
    return f"{text}; and the first convolution" if stem else text
