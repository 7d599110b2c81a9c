"""Bodies for AMD's named operators in models that others wrote, so that any onnxruntime runs them.

Each operator becomes a function of the file itself, of the same name: what its attributes and its
zero point say, in standard operators. ``com.vai.quantize`` is the older domain, with older names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from lowbit.emit.functions import (
    PAIR,
    Functions,
    block_body,
    dequantize_body,
    number,
    quantize_body,
    spread_along,
)
from lowbit.errors import ModelError
from lowbit.graph.editing import GraphEditor, constant
from lowbit.ops.block_attributes import block_spec
from lowbit.ops.quantizing import AMD_DOMAIN, OLDER_AMD_DOMAIN, OLDER_NAMES

_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOAT = int(ir.DataType.FLOAT)

Body = Callable[[ir.Node, int], tuple[str, str]]
"""From a node and the operator set to a function's signature and its steps."""


def with_bodies(model: ir.Model) -> ir.Model:
    """Return the model with a body for each named operator of AMD's that has none."""
    known = {(key[0], key[1]) for key in model.functions}
    named = [n for n in model.graph.all_nodes() if n.domain in (AMD_DOMAIN, OLDER_AMD_DOMAIN)]
    if all((node.domain, node.op_type) in known for node in named):
        return model
    model = model.clone()
    functions = Functions(GraphEditor(model))
    for node in model.graph.all_nodes():
        if (
            node.domain not in (AMD_DOMAIN, OLDER_AMD_DOMAIN)
            or (node.domain, node.op_type) in known
        ):
            continue
        name = OLDER_NAMES.get(node.op_type, node.op_type)
        if name not in _BODIES:
            raise ModelError(
                f"{node.op_type} {node.name!r} of {node.domain} has no body here; known are "
                f"{', '.join(_BODIES)}"
            )
        signature, steps = _BODIES[name](node, model.opset_imports.get("", 1))
        node.domain, node.op_type = functions.define(name, signature, steps).domain, name
    _put_pairs_together(model.graph)
    if OLDER_AMD_DOMAIN in model.opset_imports:
        del model.opset_imports[OLDER_AMD_DOMAIN]
    return model


def _put_pairs_together(graph: ir.Graph) -> None:
    """Move each quantizer to its first consumer, so that no cut of the graph falls between the two.

    What lies between may have a type that onnxruntime hands to nobody. Changes ``graph``.
    """
    order = {node: index for index, node in enumerate(graph)}
    for node in tuple(graph):
        consumers = [n for n in node.outputs[0].consumers() if n in order]
        if node.op_type == "ExtendedQuantizeLinear" and consumers:
            graph.remove(node)
            graph.insert_before(min(consumers, key=order.__getitem__), node)


def _blocks(node: ir.Node, opset: int) -> tuple[str, str]:
    node.attributes.setdefault("axis", ir.AttrInt64("axis", 1))
    signature = f"<{', '.join(node.attributes)}> (x) => (y)"
    return signature, block_body(block_spec(node), opset)


def _quantize(node: ir.Node, opset: int) -> tuple[str, str]:
    del opset
    kind = _kind(node)
    if kind in _FLOATS:
        # As the named operator of this package's own models, which saturates nothing either.
        steps = ["a = Div(x, scale)", f"y = Cast <to = {int(kind)}> (a)"]
        return _with_attributes(node, PAIR), "\n".join(steps)
    return _with_attributes(node, PAIR), quantize_body(kind, _spread(node))


def _dequantize(node: ir.Node, opset: int) -> tuple[str, str]:
    del opset
    if _kind(node) in _FLOATS:
        steps = [f"a = Cast <to = {_FLOAT}> (x)", "y = Mul(a, scale)"]
        return _with_attributes(node, PAIR), "\n".join(steps)
    return _with_attributes(node, PAIR), dequantize_body(_spread(node))


def _instance_norm(node: ir.Node, opset: int) -> tuple[str, str]:
    del opset
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    steps = f"y = InstanceNormalization <epsilon = {epsilon!r}> (x, weight, bias)"
    return _with_attributes(node, "(x, weight, bias) => (y)"), steps


def _lstm(node: ir.Node, opset: int) -> tuple[str, str]:
    """Round what an LSTM reads and writes to 16 bits; AMD's kernel also rounds the state at each step."""
    del opset
    steps = [step for word in "xwrb" for step in _rounded(node, word, word)]
    hidden = node.attributes.get_int("hidden_size")
    steps.append(
        f'state = LSTM <direction = "bidirectional", hidden_size = {hidden}> '
        "(x_rounded, w_rounded, r_rounded, b_rounded)"
    )
    steps += _rounded(node, "y", "state")
    steps.append("y = Identity(y_rounded)")
    return _with_attributes(node, "(x, w, r, b) => (y)"), "\n".join(steps)


def _rounded(node: ir.Node, word: str, source: str) -> list[str]:
    """Return the steps from ``source`` to what 16 bits hold of it, by the node's attributes."""
    scale = node.attributes.get_float(f"{word}_scale")
    point = float(node.attributes.get_int(f"{word}_zero_point"))
    return [
        f"{word}_scale_value = {number(scale)}",
        f"{word}_share = Div({source}, {word}_scale_value)",
        f"{word}_near = Round({word}_share)",
        f"{word}_low = {number(-point)}",
        f"{word}_high = {number(2.0**16 - 1 - point)}",
        f"{word}_inside = Clip({word}_near, {word}_low, {word}_high)",
        f"{word}_rounded = Mul({word}_inside, {word}_scale_value)",
    ]


_BODIES: Mapping[str, Body] = MappingProxyType(
    {
        "ExtendedQuantizeLinear": _quantize,
        "ExtendedDequantizeLinear": _dequantize,
        "BFPQuantizeDequantize": _blocks,
        "MXQuantizeDequantize": _blocks,
        "ExtendedInstanceNormalization": _instance_norm,
        "ExtendedLSTM": _lstm,
    }
)


def _with_attributes(node: ir.Node, arguments: str) -> str:
    return f"<{', '.join(node.attributes)}> {arguments}" if node.attributes else arguments


def _kind(node: ir.Node) -> ir.DataType:
    """Return the type of the quantized side, which the zero point has."""
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is None or zero.dtype is None:
        raise ModelError(f"{node.op_type} {node.name!r} has no zero point, which says its type")
    scale = constant(node.inputs[1])
    if zero.dtype in _FLOATS and scale is not None and scale.size > 1:
        raise ModelError(
            f"{node.op_type} {node.name!r} has {scale.size} scales: 16-bit floats per channel have no "
            "body here"
        )
    return zero.dtype


def _spread(node: ir.Node) -> list[int]:
    """Return the shape that brings scales per channel to their axis; none for a single scale."""
    scale, source = constant(node.inputs[1]), node.inputs[0]
    if scale is None or scale.size == 1:
        return []
    if source is None or source.shape is None:
        raise ModelError(
            f"{node.op_type} {node.name!r} has {scale.size} scales, and the rank of what it reads is "
            "not known"
        )
    return spread_along(node.attributes.get_int("axis", 1), len(source.shape))
