"""LSTM as Quark's own operator, which holds the quantization parameters of its tensors as attributes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import constant
from lowbit.graph.naming import tensor_name
from lowbit.quark.errors import NotSupportedError, say
from lowbit.quark.models.custom import NEW_DOMAIN
from lowbit.quark.models.pairs import DEQUANTIZE, QUANTIZE, parameters

_INPUTS = ("x", "w", "r", "b")
_KEPT = ("direction", "hidden_size", "layout")
_LEFT_OUT = ("activations", "clip", "input_forget")


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
        _replace(model, node)
    return model


def _why_not(node: ir.Node) -> str:
    """Return why AMD's operator cannot stand for an LSTM, or nothing."""
    if node.attributes.get_string("direction", "forward") != "bidirectional":
        return "AMD's operator is bidirectional"
    if node.attributes.get_int("layout", 0) or any(name in node.attributes for name in _LEFT_OUT):
        return f"AMD's operator has no layout 1, and none of {', '.join(_LEFT_OUT)}"
    if any(v is not None for v in node.inputs[4:]) or len(node.inputs) < 4:
        return "AMD's operator reads X, W, R and B alone"
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "AMD's operator has one output, and the last state is used here"
    return ""


def _replace(model: ir.Model, node: ir.Node) -> None:
    scales: dict[str, float | int] = {}
    for word, value in zip(_INPUTS, node.inputs, strict=False):
        producer = None if value is None else value.producer()
        scales.update(_attributes(word, producer, node, DEQUANTIZE))
    consumers = [use.node for use in node.outputs[0].uses() if use.node.op_type in QUANTIZE]
    scales.update(_attributes("y", consumers[0] if consumers else None, node, QUANTIZE))
    kept = {name: node.attributes[name] for name in _KEPT if name in node.attributes}
    name = tensor_name(node.outputs[0])
    new = ir.node("ExtendedLSTM", node.inputs[:4], scales, domain=NEW_DOMAIN, name=node.name)
    new.attributes.update(kept)
    new.attributes.setdefault("layout", ir.AttrInt64("layout", 0))
    graph, old = node.graph, node.outputs[0]
    assert graph is not None  # a node of a model is in a graph
    graph.insert_before(node, new)
    new.outputs[0].type, new.outputs[0].shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)
    new.outputs[0].name = name
    model.opset_imports.setdefault(NEW_DOMAIN, 1)


def _attributes(
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
