"""Q/DQ pairs in a model: finding them, and taking them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.editing import add_constant, bypass, constant
from lowbit.graph.naming import tensor_name

QUANTIZE = frozenset({"QuantizeLinear", "ExtendedQuantizeLinear", "VitisQuantizeLinear"})
DEQUANTIZE = frozenset({"DequantizeLinear", "ExtendedDequantizeLinear", "VitisDequantizeLinear"})
_BLOCKS = frozenset(
    {"BFPQuantizeDequantize", "MXQuantizeDequantize", "BFPFixNeuron", "MXFixNeuron"}
)

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
    """Let readers of the wanted pairs read what was quantized. Changes ``graph``."""
    count = 0
    for quantizer, dequantizer in tuple(activation_pairs(graph)):
        if wanted(quantizer, dequantizer):
            source, result = quantizer.inputs[0], dequantizer.outputs[0]
            if source is None:
                continue
            bypass(source, result)
            graph.remove(dequantizer, safe=True)
            count += 1
    remove_unused(graph)
    return count


def remove_rounding(graph: ir.Graph) -> None:
    """Take out operators that round floats to other floats. Changes ``graph``.

    Those are block formats, in one operator each, and pairs after constants that are floats still.
    """
    for node in tuple(graph):
        source = node.inputs[0] if node.inputs else None
        if source is None:
            continue
        if node.op_type in _BLOCKS:
            bypass(source, node.outputs[0])
        elif node.op_type in QUANTIZE and constant(source) is not None:
            for use in tuple(node.outputs[0].uses()):
                if use.node.op_type in DEQUANTIZE:
                    bypass(source, use.node.outputs[0])
    remove_unused(graph)


def to_floats(graph: ir.Graph) -> None:
    """Put floats in the place of stored integers. Changes ``graph``."""
    for node in tuple(stored_constants(graph)):
        result = node.outputs[0]
        name = f"{tensor_name(result)}_float"
        value = add_constant(graph, name, dequantized(node))
        bypass(value, result)
        graph.remove(node, safe=True)
    remove_unused(graph)


def remove_unused(graph: ir.Graph) -> None:
    """Drop nodes and constants that nothing reads. Changes ``graph``."""
    for node in reversed(tuple(graph)):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)
    for name, value in tuple(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def replace_constant(graph: ir.Graph, node: ir.Node, index: int, array: Array) -> None:
    """Give an input of a node a constant of its own. Changes ``graph``."""
    old = node.inputs[index]
    name = tensor_name(old) if old is not None else f"{node.name}_{index}"
    node.replace_input_with(index, add_constant(graph, name, array))
