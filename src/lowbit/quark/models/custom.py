"""Quark's own operators: their two sets of names, and standard ones in their place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from lowbit.emit.bodies import with_bodies
from lowbit.graph.editing import add_constant, bypass, constant, drop_unused, take_over
from lowbit.graph.naming import MICROSOFT
from lowbit.ops.quantizing import (
    AMD_DOMAIN,
    DEQUANTIZE,
    OLDER_AMD_DOMAIN,
    OLDER_NAMES,
    QUANTIZE,
)
from lowbit.quark.errors import NotSupportedError, say
from lowbit.quark.models.pairs import parameters

_INTEGERS = frozenset({"int8", "uint8", "int16", "uint16", "int32"})
_LARGEST_BF16 = 3.38953139e38


def rename(model: ir.Model, *, back: bool) -> ir.Model:
    """Return the model with Quark's operators under their older names, or back."""
    model = model.clone()
    names = OLDER_NAMES if back else {new: old for old, new in OLDER_NAMES.items()}
    domains = (OLDER_AMD_DOMAIN, AMD_DOMAIN)
    source, target = domains if back else reversed(domains)
    for node in model.graph.all_nodes():
        if _within(node.domain, source) and node.op_type in names:
            node.domain = node.domain.replace(source, target)
            node.op_type = names[node.op_type]
    for key, function in tuple(model.functions.items()):
        if _within(function.domain, source) and function.name in names:
            del model.functions[key]
            function.domain = function.domain.replace(source, target)
            function.name = names[function.name]
            model.functions[function.identifier()] = function
    for domain in [name for name in model.opset_imports if _within(name, source)]:
        version = model.opset_imports.pop(domain)
        model.opset_imports[domain.replace(source, target)] = version
    return model


def _within(domain: str, family: str) -> bool:
    """Whether a domain is the family's own, or one that it has for second bodies of a name."""
    return domain == family or domain.startswith(f"{family}.")


def to_standard(model: ir.Model) -> ir.Model:
    """Return the model with Q/DQ of integers from onnxruntime's set instead of Quark's."""
    model = model.clone()
    for node in model.graph:
        if _within(node.domain, AMD_DOMAIN) and node.op_type in (QUANTIZE | DEQUANTIZE):
            zero = constant(node.inputs[2]) if len(node.inputs) > 2 else None
            if zero is not None and zero.dtype.name in _INTEGERS:
                node.op_type = node.op_type.removeprefix("Extended")
                node.domain = MICROSOFT
                model.opset_imports.setdefault(MICROSOFT, 1)
    return model


def to_casts(model: ir.Model) -> ir.Model:
    """Return the model with pairs of bfloat16 as Cast, with Mul for a scale other than 1."""
    model = model.clone()
    graph = model.graph
    for node in tuple(graph):
        if not _within(node.domain, AMD_DOMAIN) or not _is_bf16(node):
            continue
        quantizes = node.op_type in QUANTIZE
        cast = ir.node("Cast", [node.inputs[0]], {"to": 16 if quantizes else 1})
        nodes = [cast]
        scale = constant(node.inputs[1])
        if scale is not None and not np.all(scale == 1):
            nodes = _scaled(graph, node, cast, scale, first=quantizes)
        graph.insert_before(node, nodes)
        take_over(node.outputs[0], nodes[-1].outputs[0])
        graph.remove(node, safe=True)
    drop_unused(graph)
    return model


def to_npu_normalization(model: ir.Model) -> ir.Model:
    """Return the model with InstanceNormalization under the name of AMD's operator, with a body."""
    model = model.clone()
    for node in model.graph.all_nodes():
        if node.op_type == "InstanceNormalization" and node.domain == "":
            node.domain, node.op_type = AMD_DOMAIN, "ExtendedInstanceNormalization"
            model.opset_imports.setdefault(AMD_DOMAIN, 1)
    return with_bodies(model)


def clip_before(model: ir.Model) -> ir.Model:
    """Return the model with a Clip to bfloat16's range before activations become bfloat16."""
    model = model.clone()
    graph = model.graph
    for node in tuple(graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type not in QUANTIZE or not _is_bf16(node) or source is None:
            continue
        if constant(source) is not None:
            continue
        bounds = [
            _constant(graph, f"{node.name}_{word}", np.array(bound, np.float32))
            for word, bound in (("low", -_LARGEST_BF16), ("high", _LARGEST_BF16))
        ]
        clip = ir.node("Clip", [source, *bounds], name=f"{node.name}_clip")
        clip.outputs[0].name = f"{source.name}_clipped_{node.name}"
        clip.outputs[0].type, clip.outputs[0].shape = source.type, source.shape
        graph.insert_before(node, clip)
        node.replace_input_with(0, clip.outputs[0])
    return model


def without_casts(model: ir.Model) -> ir.Model:
    """Return the model without pairs of Cast to bfloat16 and back, its constants rounded to it.

    Casts right after inputs stay, so that the model still reads what bfloat16 can hold.
    """
    model = model.clone()
    graph = model.graph
    for node in tuple(graph):
        if node.op_type != "Cast" or node.attributes.get_int("to", 0) != 16:
            continue
        source = node.inputs[0]
        if source is None or source.is_graph_input():
            continue
        stored = constant(source)
        for use in tuple(node.outputs[0].uses()):
            back = use.node
            if back.op_type != "Cast" or back.attributes.get_int("to", 0) != 1:
                continue
            if stored is not None:
                rounded = stored.astype(ml_dtypes.bfloat16).astype(np.float32)
                source = _constant(graph, f"{source.name}_bf16", rounded)
            _take_over_by(source, back.outputs[0])
    drop_unused(graph)
    return model


def _is_bf16(node: ir.Node) -> bool:
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    return (
        node.op_type in (QUANTIZE | DEQUANTIZE)
        and zero is not None
        and zero.dtype == ml_dtypes.bfloat16
    )


def _scaled(
    graph: ir.Graph, node: ir.Node, cast: ir.Node, scale: np.ndarray, *, first: bool
) -> list[ir.Node]:
    """Return the Cast with a Mul before it (to bfloat16) or after it (from bfloat16)."""
    factor = np.reciprocal(scale) if first else scale
    value = _constant(graph, f"{node.name}_factor", factor.astype(np.float32))
    multiply = ir.node("Mul", [node.inputs[0] if first else cast.outputs[0], value])
    if first:
        cast.replace_input_with(0, multiply.outputs[0])
        return [multiply, cast]
    return [cast, multiply]


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    if name not in graph.initializers:
        add_constant(graph, name, array)
    return graph.initializers[name]


def _take_over_by(source: ir.Value, old: ir.Value) -> None:
    """Replace a value by one that is computed before it; an output of the graph keeps its name."""
    unnamed = source.is_graph_output() or source.is_graph_input() or source.const_value
    if not (old.is_graph_output() and unnamed):
        bypass(source, old)


_LSTM_INPUTS = ("x", "w", "r", "b")
_LSTM_KEPT = ("direction", "hidden_size", "layout")
_LSTM_LEFT_OUT = ("activations", "clip", "input_forget")


def to_extended_lstm(model: ir.Model) -> ir.Model:
    """Return the model with each LSTM between 16-bit Q/DQ pairs as ExtendedLSTM.

    One that the operator cannot stand for stays, and that is said.
    """
    model = model.clone()
    for node in tuple(model.graph.all_nodes()):
        if node.op_type != "LSTM" or node.domain:
            continue
        reason = _why_not(node)
        if reason:
            say(f"LSTM {node.name!r} stays as it is: {reason}")
            continue
        _replace_lstm(model, node)
    return model


def _why_not(node: ir.Node) -> str:
    """Return why AMD's operator cannot stand for an LSTM, or nothing."""
    if node.attributes.get_string("direction", "forward") != "bidirectional":
        return "AMD's operator is bidirectional"
    if node.attributes.get_int("layout", 0) or any(
        name in node.attributes for name in _LSTM_LEFT_OUT
    ):
        return f"AMD's operator has no layout 1, and none of {', '.join(_LSTM_LEFT_OUT)}"
    if any(v is not None for v in node.inputs[4:]) or len(node.inputs) < 4:
        return "AMD's operator reads X, W, R and B alone"
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "AMD's operator has one output, and the last state is used here"
    return ""


def _replace_lstm(model: ir.Model, node: ir.Node) -> None:
    scales: dict[str, float | int] = {}
    for word, value in zip(_LSTM_INPUTS, node.inputs, strict=False):
        producer = None if value is None else value.producer()
        scales.update(_lstm_attributes(word, producer, node, DEQUANTIZE))
    consumers = [use.node for use in node.outputs[0].uses() if use.node.op_type in QUANTIZE]
    scales.update(_lstm_attributes("y", consumers[0] if consumers else None, node, QUANTIZE))
    kept = {name: node.attributes[name] for name in _LSTM_KEPT if name in node.attributes}
    new = ir.node("ExtendedLSTM", node.inputs[:4], scales, domain=AMD_DOMAIN, name=node.name)
    new.attributes.update(kept)
    new.attributes.setdefault("layout", ir.AttrInt64("layout", 0))
    graph = node.graph
    assert graph is not None  # a node of a model is in a graph
    graph.insert_before(node, new)
    take_over(node.outputs[0], new.outputs[0])
    graph.remove(node, safe=True)
    model.opset_imports.setdefault(AMD_DOMAIN, 1)


def _lstm_attributes(
    word: str, pair: ir.Node | None, node: ir.Node, kinds: frozenset[str]
) -> dict[str, float | int]:
    """Return scale and zero point of one tensor of an LSTM as attributes."""
    if pair is None or pair.op_type not in kinds or constant(pair.inputs[1]) is None:
        raise NotSupportedError(
            f"{word.upper()} of LSTM {node.name!r} is not quantized: quantize the model with LSTM among "
            "the operators first (extra_op_types_to_quantize=['LSTM'])"
        )
    scale, zero = parameters(pair)
    if zero is None or zero.dtype != np.uint16 or scale.size != 1:
        kind = "no zero point" if zero is None else f"{zero.dtype}, {scale.size} scales"
        raise NotSupportedError(
            f"{word.upper()} of LSTM {node.name!r} is quantized otherwise ({kind}): AMD's operator "
            "computes in uint16 with a scale per tensor (activation_type and weight_type QUInt16)"
        )
    return {f"{word}_scale": float(scale.item()), f"{word}_zero_point": int(zero.item())}
