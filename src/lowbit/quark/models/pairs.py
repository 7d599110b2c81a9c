"""Q/DQ pairs in a model: finding them, taking them out, and other types for the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.errors import ModelError
from lowbit.graph.editing import (
    add_constant,
    bypass,
    constant,
    drop_unused,
    replace_constant,
)
from lowbit.graph.naming import tensor_name
from lowbit.ops.linear import linear_operator
from lowbit.ops.quantizing import DEQUANTIZE, QUANTIZE, ROUND_BLOCKS

Array = NDArray[Any]


def activation_pairs(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Yield each Q with each DQ that reads it, where what it quantizes is computed."""
    for node in graph:
        if node.op_type in QUANTIZE and constant(node.inputs[0]) is None:
            for use in node.outputs[0].uses():
                if use.node.op_type in DEQUANTIZE:
                    yield node, use.node


def stored_constants(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the DQ nodes that read stored integers."""
    for node in graph:
        if node.op_type in DEQUANTIZE and constant(node.inputs[0]) is not None:
            yield node


def parameters(node: ir.Node) -> tuple[Array, Array | None]:
    """Return scale and zero point of a Q or DQ node, where they are constants."""
    scale = constant(node.inputs[1])
    if scale is None:
        raise ValueError(f"the scale of {node.name!r} is computed")
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    return scale, zero


def dequantized(node: ir.Node) -> Array:
    """Return the floats that a DQ makes of stored integers."""
    codes = constant(node.inputs[0])
    scale, zero = parameters(node)
    if codes is None:
        raise ValueError(f"{node.name!r} does not read a constant")
    if scale.ndim == 1 and scale.size > 1:
        axis = node.attributes.get_int("axis", 1) % codes.ndim
        shape = [1] * codes.ndim
        shape[axis] = -1
        scale = scale.reshape(shape)
        zero = None if zero is None else zero.reshape(shape)
    offset = np.zeros((), np.float32) if zero is None else zero.astype(np.float32)
    values: Array = (codes.astype(np.float32) - offset) * scale
    return values.astype(np.float32)


def remove_pairs(graph: ir.Graph, wanted: Callable[[ir.Node, ir.Node], bool]) -> int:
    """Make consumers of the wanted pairs read the unquantized value. Changes ``graph``."""
    count = 0
    for quantizer, dequantizer in tuple(activation_pairs(graph)):
        if wanted(quantizer, dequantizer):
            source, result = quantizer.inputs[0], dequantizer.outputs[0]
            if source is None:
                continue
            bypass(source, result)
            graph.remove(dequantizer, safe=True)
            count += 1
    drop_unused(graph)
    return count


def remove_rounding(graph: ir.Graph) -> None:
    """Take out operators that round floats to other floats. Changes ``graph``.

    Those are block formats, in one operator each, and pairs after constants that are floats still.
    """
    for node in tuple(graph):
        source = node.inputs[0] if node.inputs else None
        if source is None:
            continue
        if node.op_type in ROUND_BLOCKS:
            bypass(source, node.outputs[0])
        elif node.op_type in QUANTIZE and constant(source) is not None:
            for use in tuple(node.outputs[0].uses()):
                if use.node.op_type in DEQUANTIZE:
                    bypass(source, use.node.outputs[0])
    drop_unused(graph)


def to_floats(graph: ir.Graph) -> None:
    """Put floats in the place of stored integers. Changes ``graph``."""
    for node in tuple(stored_constants(graph)):
        result = node.outputs[0]
        name = f"{tensor_name(result)}_float"
        value = add_constant(graph, name, dequantized(node))
        bypass(value, result)
        graph.remove(node, safe=True)
    drop_unused(graph)


def shift_zero_point(
    model: ir.Model, source: np.dtype, zeros: tuple[int, ...], target: np.dtype, zero: int
) -> ir.Model:
    """Return the model with activations of one type in another of the same width.

    Only those whose zero point is one of ``zeros`` are changed: they mean the same afterwards.
    """
    model = model.clone()
    for quantizer, dequantizer in tuple(activation_pairs(model.graph)):
        for node in (quantizer, dequantizer):
            _, old = parameters(node)
            if old is not None and old.dtype == source and int(old.reshape(-1)[0]) in zeros:
                replace_constant(model.graph, node, 2, np.full(old.shape, zero, target))
    _settle(model)
    return model


def halve_width(model: ir.Model) -> ir.Model:
    """Return the model with uint16 activations and constants in uint8, over the same ranges."""
    model = model.clone()
    for pair in tuple(activation_pairs(model.graph)):
        for node in pair:
            scale, zero = parameters(node)
            if zero is not None and zero.dtype == np.uint16:
                new_scale, new_zero = _narrower(scale, zero)
                replace_constant(model.graph, node, 1, new_scale)
                replace_constant(model.graph, node, 2, new_zero)
    for node in tuple(stored_constants(model.graph)):
        scale, zero = parameters(node)
        if zero is not None and zero.dtype == np.uint16 and scale.size == 1:
            values = dequantized(node)
            new_scale, new_zero = _narrower(scale, zero)
            codes = np.clip(np.rint(values / new_scale) + new_zero, 0, 255).astype(np.uint8)
            replace_constant(model.graph, node, 0, codes)
            replace_constant(model.graph, node, 1, new_scale)
            replace_constant(model.graph, node, 2, new_zero)
    requantize_biases(model.graph)
    _settle(model)
    return model


def int32_biases(model: ir.Model) -> ir.Model:
    """Return the model with 8-bit biases in 32 bits, in the scale its layers accumulate in."""
    model = model.clone()
    requantize_biases(model.graph)
    _settle(model)
    return model


def int16_biases(model: ir.Model) -> ir.Model:
    """Return the model with 32-bit biases clipped to 16 bits."""
    from lowbit.quark.rewriting import to_opset

    model = to_opset(model.clone(), max(21, model.opset_imports.get("", 0)))
    limits = np.iinfo(np.int16)
    for node in _bias_nodes(model.graph):
        codes = _codes(node)
        if codes.dtype != np.int32:
            continue
        clipped = np.clip(codes, limits.min, limits.max).astype(np.int16)
        _, zero = parameters(node)
        replace_constant(model.graph, node, 0, clipped)
        if zero is not None:
            replace_constant(model.graph, node, 2, zero.astype(np.int16))
    _settle(model)
    return model


def power_of_two_resizes(model: ir.Model) -> ir.Model:
    """Return the model with power-of-two scales, zero point 0, around each Resize."""
    model = model.clone()
    resized = {
        value
        for node in model.graph
        if node.op_type == "Resize"
        for value in (node.inputs[0], node.outputs[0])
    }
    for quantizer, dequantizer in tuple(activation_pairs(model.graph)):
        if quantizer.inputs[0] not in resized and dequantizer.outputs[0] not in resized:
            continue
        for node in (quantizer, dequantizer):
            scale, zero = parameters(node)
            low, high = _span(scale, zero)
            exponent = np.ceil(np.log2(max(abs(low), abs(high)) / 128))
            replace_constant(model.graph, node, 1, np.array(2.0**exponent, np.float32))
            replace_constant(model.graph, node, 2, np.array(0, np.int8))
    requantize_biases(model.graph)
    _settle(model)
    return model


def requantize_biases(graph: ir.Graph) -> None:
    """Write biases anew in the scale input scale times weight scale. Changes ``graph``."""
    for node in tuple(_bias_nodes(graph)):
        layer = next(iter(node.outputs[0].uses())).node
        source, weight = (value.producer() if value else None for value in layer.inputs[:2])
        if source is None or weight is None:
            continue
        scale = (parameters(source)[0] * parameters(weight)[0]).astype(np.float32)
        values = dequantized(node)
        limits = np.iinfo(np.int32)
        codes = np.clip(np.rint(values / scale.astype(np.float64)), limits.min, limits.max)
        replace_constant(graph, node, 0, codes.astype(np.int32))
        replace_constant(graph, node, 1, scale)
        replace_constant(graph, node, 2, np.zeros(scale.shape, np.int32))


def _bias_nodes(graph: ir.Graph) -> list[ir.Node]:
    return [
        node
        for node in stored_constants(graph)
        for use in node.outputs[0].uses()
        if (layer := linear_operator(use.node)) is not None and use.idx == layer.bias
    ]


def _codes(node: ir.Node) -> np.ndarray:
    value = node.inputs[0]
    if value is None or value.const_value is None:
        raise ModelError(f"the bias of {node.name!r} is not stored in the model")
    return value.const_value.numpy()


def _narrower(scale: np.ndarray, zero: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and zero point of 8 bits over the range they have in 16."""
    low, high = -float(zero) * float(scale), (65535 - float(zero)) * float(scale)
    narrow = np.float32((high - low) / 255)
    position = np.clip(np.rint(-low / narrow), 0, 255)
    return np.full(scale.shape, narrow, np.float32), np.full(zero.shape, position, np.uint8)


def _span(scale: np.ndarray, zero: np.ndarray | None) -> tuple[float, float]:
    kind = np.iinfo(np.int8 if zero is None else zero.dtype)
    offset = 0 if zero is None else int(zero.reshape(-1)[0])
    step = float(scale.reshape(-1)[0])
    return (kind.min - offset) * step, (kind.max - offset) * step


def _settle(model: ir.Model) -> None:
    """Drop what is no longer read, and types of what has changed. Changes ``model``."""
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            zero = node.inputs[2] if len(node.inputs) > 2 else None
            if zero is not None and zero.const_value is not None:
                node.outputs[0].type = ir.TensorType(zero.const_value.dtype)
    drop_unused(model.graph)
