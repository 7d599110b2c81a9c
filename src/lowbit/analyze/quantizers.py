"""Where a quantized model quantizes: its Q/DQ pairs and the constants it keeps as integers.

Found in the graph itself, so that models of other tools are understood as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.naming import tensor_name
from lowbit.ops.traits import traits_of

Kind = Literal["activation", "weight"]

_QUANTIZE = frozenset({"QuantizeLinear", "ExtendedQuantizeLinear"})
_DEQUANTIZE = frozenset({"DequantizeLinear", "ExtendedDequantizeLinear"})
_WHOLE = frozenset({"BFPQuantizeDequantize", "MXQuantizeDequantize", "BFPFixNeuron", "MXFixNeuron"})
_SUFFIXES = ("_DequantizeLinear_Output", "_QuantizeLinear_Input", "_quantized")
_BIAS_INPUT: Mapping[str, int] = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """Scale and zero point as stored, and the integers there are."""

    scale: NDArray[np.float64]
    zero_point: NDArray[np.float64]
    low: int
    high: int
    axis: int | None

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest float that is not clipped, over all channels."""
        low = (self.low - self.zero_point) * self.scale
        high = (self.high - self.zero_point) * self.scale
        return float(np.min(low)), float(np.max(high))


@dataclasses.dataclass(frozen=True, slots=True)
class Quantizer:
    """One tensor that is quantized.

    Attributes:
        tensor: What the float model calls it.
        kind: Whether it is computed or constant.
        format: The integers, or what else it is rounded to.
        source: The value that is quantized; for a constant, the integers.
        results: The dequantized values that the rest of the graph reads.
        nodes: The nodes that do it.
        scale: Its parameters, where it has a scale.
        reader: The node that reads it, and that node's operator.
        channel_axis: Where the output channels of a weight lie.
        bias: The dequantized bias that belongs to a weight, and its integers.
    """

    tensor: str
    kind: Kind
    format: str
    source: str
    results: tuple[str, ...]
    nodes: tuple[str, ...]
    scale: Scale | None
    reader: str
    op_type: str
    channel_axis: int = 0
    bias: tuple[str, str] | None = None


def find_quantizers(model: ir.Model) -> tuple[Quantizer, ...]:
    """Return what is quantized, in the order of the graph; a bias belongs to its weight."""
    graph = model.graph
    found = [*_activations(graph), *_weights(graph)]
    order = {node: index for index, node in enumerate(graph)}
    by_result = {q.results[0]: q for q in found}
    places: dict[str, int] = {}
    for name, quantizer in by_result.items():
        value = _value(graph, name)
        readers = [order[n] for n in value.consumers() if n in order]
        places[quantizer.tensor] = min(readers, default=len(order))
    return tuple(sorted(found, key=lambda q: (places[q.tensor], q.kind)))


def _activations(graph: ir.Graph) -> Iterator[Quantizer]:
    outputs = {tensor_name(v) for v in graph.outputs}
    for node in graph:
        if node.op_type in _WHOLE:
            source, result = node.inputs[0], node.outputs[0]
            if source is not None and source.const_value is None:
                name = _plain(result, source, outputs)
                yield _computed(name, node, source, (result,), (node,))
            continue
        if node.op_type not in _QUANTIZE or node.inputs[0] is None:
            continue
        source = node.inputs[0]
        readers = [n for n in node.outputs[0].consumers() if n.op_type in _DEQUANTIZE]
        if readers:
            results = tuple(n.outputs[0] for n in readers)
            name = _plain(results[0], source, outputs)
            yield _computed(name, node, source, results, (node, *readers))


def _computed(
    name: str,
    node: ir.Node,
    source: ir.Value,
    results: tuple[ir.Value, ...],
    nodes: tuple[ir.Node, ...],
) -> Quantizer:
    scale = _scale(node)
    reader = next((n for r in results for n in r.consumers()), None)
    return Quantizer(
        tensor=name,
        kind="weight" if source.const_value is not None else "activation",
        format=_format(node),
        source=tensor_name(source),
        results=tuple(tensor_name(r) for r in results),
        nodes=tuple(str(n.name) for n in nodes),
        scale=scale,
        reader=str(reader.name) if reader else "",
        op_type=_producer(source, reader),
    )


def _producer(source: ir.Value, reader: ir.Node | None) -> str:
    """Return the operator a tensor belongs to: the one that computes it, or reads an input."""
    producer = source.producer()
    if producer is not None:
        return producer.op_type
    return "input" if reader is None else f"input of {reader.op_type}"


def _weights(graph: ir.Graph) -> Iterator[Quantizer]:
    for node in graph:
        stored = node.inputs[0] if node.op_type in _DEQUANTIZE else None
        if stored is None or stored.const_value is None:
            continue
        result = node.outputs[0]
        reader = next(iter(result.consumers()), None)
        if reader is None or _is_bias(result, reader):
            continue
        yield Quantizer(
            tensor=stripped(tensor_name(stored)),
            kind="weight",
            format=_format(node),
            source=tensor_name(stored),
            results=(tensor_name(result),),
            nodes=(str(node.name),),
            scale=_scale(node),
            reader=str(reader.name),
            op_type=reader.op_type,
            channel_axis=_channel_axis(reader, stored),
            bias=_bias_of(reader),
        )


def _is_bias(value: ir.Value, reader: ir.Node) -> bool:
    index = _BIAS_INPUT.get(reader.op_type)
    return index is not None and len(reader.inputs) > index and reader.inputs[index] is value


def _channel_axis(reader: ir.Node, stored: ir.Value) -> int:
    traits = traits_of(reader)
    rank = len(stored.shape) if stored.shape is not None else 0
    if traits is None or traits.weight is None or rank < 2:
        return 0
    return traits.channel_axis(reader) % rank


def _bias_of(reader: ir.Node) -> tuple[str, str] | None:
    index = _BIAS_INPUT.get(reader.op_type, len(reader.inputs))
    value = reader.inputs[index] if index < len(reader.inputs) else None
    producer = value.producer() if value is not None else None
    if value is None or producer is None or producer.op_type not in _DEQUANTIZE:
        return None
    stored = producer.inputs[0]
    if stored is None or stored.const_value is None:
        return None
    return tensor_name(value), tensor_name(stored)


def _scale(node: ir.Node) -> Scale | None:
    if node.op_type in _WHOLE or len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    scale = node.inputs[1].const_value
    zero = node.inputs[2].const_value if len(node.inputs) > 2 and node.inputs[2] else None
    if scale is None:
        return None
    kind = _integers(node)
    axis = node.attributes.get_int("axis", 1) if scale.size > 1 else None
    scales = scale.numpy().astype(np.float64)
    zeros = np.zeros_like(scales) if zero is None else zero.numpy().astype(np.float64)
    low, high = _span(kind)
    return Scale(scales, zeros, low, high, axis)


def _integers(node: ir.Node) -> ir.DataType:
    """Return the type of the integers of a Q or DQ node."""
    if node.op_type in _DEQUANTIZE and node.inputs[0] is not None and node.inputs[0].dtype:
        return node.inputs[0].dtype
    if len(node.inputs) > 2 and node.inputs[2] is not None and node.inputs[2].const_value:
        return node.inputs[2].const_value.dtype
    return ir.DataType.UINT8


def _span(kind: ir.DataType) -> tuple[int, int]:
    if kind.is_integer():
        bits = kind.bitwidth
        return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.is_signed() else (0, (1 << bits) - 1)
    return (0, 0)


def _format(node: ir.Node) -> str:
    if node.op_type in _WHOLE:
        return "MX" if node.op_type.startswith("MX") else "BFP"
    return _integers(node).name.lower()


def _plain(result: ir.Value, source: ir.Value, outputs: set[str]) -> str:
    """Return what the float model calls a quantized tensor: a graph output keeps its name."""
    name = tensor_name(result)
    return name if name in outputs else stripped(tensor_name(source))


def stripped(name: str) -> str:
    """Return the name of a tensor without what quantizing it added."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


def _value(graph: ir.Graph, name: str) -> ir.Value:
    for node in graph:
        for output in node.outputs:
            if output.name == name:
                return output
    raise KeyError(name)


def is_tuned(model: ir.Model) -> bool:
    """Whether the weights of a model were fitted to its quantizers."""
    config = msgspec.json.decode(model.metadata_props.get("lowbit.config", "{}"))
    return bool(config.get("refinement"))
