"""Where a quantized model quantizes: its Q/DQ pairs and the constants it keeps as integers.

Found in the graph itself, so that models of other tools are understood as well. The float weights
are those of the normalized float model, found by name. A weight that equalization has rescaled is not
among them: it is known as quantized only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array
from lowbit.numerics.formats import FloatArray
from lowbit.ops.quantizing import DEQUANTIZE, QUANTIZE, ROUND_BLOCKS
from lowbit.ops.traits import traits_of

Kind = Literal["activation", "weight"]

_SUFFIXES = ("_DequantizeLinear_Output", "_QuantizeLinear_Input", "_quantized")


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
        consumer: The node that reads it, and that node's operator.
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
    consumer: str
    op_type: str
    channel_axis: int = 0
    bias: tuple[str, str] | None = None


def find_quantizers(model: ir.Model) -> tuple[Quantizer, ...]:
    """Return what is quantized, in the order of the graph; a bias belongs to its weight."""
    graph = model.graph
    found = [*_activations(graph), *_weights(graph)]
    order = {node: index for index, node in enumerate(graph)}
    values = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    read_by: dict[str, int] = {}
    for quantizer in found:
        consumers = [order[n] for n in values[quantizer.results[0]].consumers() if n in order]
        read_by[quantizer.tensor] = min(consumers, default=len(order))
    return tuple(sorted(found, key=lambda q: (read_by[q.tensor], q.kind)))


def _activations(graph: ir.Graph) -> Iterator[Quantizer]:
    outputs = {tensor_name(v) for v in graph.outputs}
    for node in graph:
        if node.op_type in ROUND_BLOCKS:
            source, result = node.inputs[0], node.outputs[0]
            if source is not None and source.const_value is None:
                name = _plain(result, source, outputs)
                yield _computed(name, node, source, (result,), (node,))
            continue
        if node.op_type not in QUANTIZE or node.inputs[0] is None:
            continue
        source = node.inputs[0]
        consumers = [n for n in node.outputs[0].consumers() if n.op_type in DEQUANTIZE]
        if consumers:
            results = tuple(n.outputs[0] for n in consumers)
            name = _plain(results[0], source, outputs)
            yield _computed(name, node, source, results, (node, *consumers))


def _computed(
    name: str,
    node: ir.Node,
    source: ir.Value,
    results: tuple[ir.Value, ...],
    nodes: tuple[ir.Node, ...],
) -> Quantizer:
    scale = _scale(node)
    consumer = next((n for r in results for n in r.consumers()), None)
    return Quantizer(
        tensor=name,
        kind="weight" if source.const_value is not None else "activation",
        format=_format(node),
        source=tensor_name(source),
        results=tuple(tensor_name(r) for r in results),
        nodes=tuple(str(n.name) for n in nodes),
        scale=scale,
        consumer=str(consumer.name) if consumer else "",
        op_type=_producer(source, consumer),
    )


def _producer(source: ir.Value, consumer: ir.Node | None) -> str:
    """Return the operator a tensor belongs to: the one that computes it, or reads an input."""
    producer = source.producer()
    if producer is not None:
        return producer.op_type
    return "input" if consumer is None else f"input of {consumer.op_type}"


def _weights(graph: ir.Graph) -> Iterator[Quantizer]:
    for node in graph:
        stored = node.inputs[0] if node.op_type in DEQUANTIZE else None
        if stored is None or stored.const_value is None:
            continue
        result = node.outputs[0]
        consumer = next(iter(result.consumers()), None)
        if consumer is None or _is_bias(result, consumer):
            continue
        yield Quantizer(
            tensor=stripped(tensor_name(stored)),
            kind="weight",
            format=_format(node),
            source=tensor_name(stored),
            results=(tensor_name(result),),
            nodes=(str(node.name),),
            scale=_scale(node),
            consumer=str(consumer.name),
            op_type=consumer.op_type,
            channel_axis=_channel_axis(consumer, stored),
            bias=_bias_of(consumer),
        )


def _is_bias(value: ir.Value, consumer: ir.Node) -> bool:
    return _bias_input(consumer) is value


def _bias_input(node: ir.Node) -> ir.Value | None:
    traits = traits_of(node)
    if traits is None or traits.bias is None or len(node.inputs) <= traits.bias:
        return None
    return node.inputs[traits.bias]


def _channel_axis(consumer: ir.Node, stored: ir.Value) -> int:
    traits = traits_of(consumer)
    rank = len(stored.shape) if stored.shape is not None else 0
    if traits is None or traits.weight is None or rank < 2:
        return 0
    return traits.channel_axis(consumer) % rank


def _bias_of(consumer: ir.Node) -> tuple[str, str] | None:
    value = _bias_input(consumer)
    producer = value.producer() if value is not None else None
    if value is None or producer is None or producer.op_type not in DEQUANTIZE:
        return None
    stored = producer.inputs[0]
    if stored is None or stored.const_value is None:
        return None
    return tensor_name(value), tensor_name(stored)


def _scale(node: ir.Node) -> Scale | None:
    if node.op_type in ROUND_BLOCKS or len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    scale = node.inputs[1].const_value
    zero = node.inputs[2].const_value if len(node.inputs) > 2 and node.inputs[2] else None
    if scale is None:
        return None
    kind = _integers(node)
    if not kind.is_integer():  # floats have a scale, but no limits that follow from it
        return None
    axis = node.attributes.get_int("axis", 1) if scale.size > 1 else None
    scales = scale.numpy().astype(np.float64)
    zeros = np.zeros_like(scales) if zero is None else zero.numpy().astype(np.float64)
    low, high = _span(kind)
    return Scale(scales, zeros, low, high, axis)


def _integers(node: ir.Node) -> ir.DataType:
    """Return the type of the integers of a Q or DQ node."""
    if node.op_type in DEQUANTIZE and node.inputs[0] is not None and node.inputs[0].dtype:
        return node.inputs[0].dtype
    if len(node.inputs) > 2 and node.inputs[2] is not None and node.inputs[2].const_value:
        return node.inputs[2].const_value.dtype
    return ir.DataType.UINT8


def _span(kind: ir.DataType) -> tuple[int, int]:
    bits = kind.bitwidth
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.is_signed() else (0, (1 << bits) - 1)


def _format(node: ir.Node) -> str:
    if node.op_type in ROUND_BLOCKS:
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


def is_refined(model: ir.Model) -> bool:
    """Whether the weights of a model were refined for its quantizers."""
    try:
        config = msgspec.json.decode(model.metadata_props.get("lowbit.config", "{}"))
    except (msgspec.DecodeError, RecursionError):  # anybody can write into that field
        return False
    return isinstance(config, dict) and bool(config.get("refinement"))


_STEP, _STRAY = 1.01, 0.02
"""Rounding leaves a weight within a step; where more than a few are further off, it is another one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """One dequantized constant: its integers, what they stand for, and what it was in float."""

    codes: Array
    quantized: FloatArray
    float_value: FloatArray | None


def read_constants(
    model: ir.Model, floats: ir.Model, quantizers: Sequence[Quantizer]
) -> dict[str, Constant]:
    """Return weights and biases by the names of their dequantized values."""
    values = ir.convenience.create_value_mapping(model.graph)
    known = floats.graph.initializers
    found: dict[str, Constant] = {}
    for quantizer in quantizers:
        if quantizer.kind != "weight":
            continue
        if rounds_floats(quantizer):
            # What it is rounded to, only running the model tells.
            data = np.asarray(_float(model.graph.initializers, quantizer.source))
            found[quantizer.results[0]] = Constant(data, data, None)
            continue
        codes, weight, step = _dequantized(values[quantizer.results[0]])
        plain = _like(codes, weight, step, _float(known, quantizer.tensor))
        found[quantizer.results[0]] = Constant(codes, weight, plain)
        if quantizer.bias is not None:
            name, stored = quantizer.bias
            codes, bias, _ = _dequantized(values[name])
            was = _float(known, stripped(stored)) if plain is not None else None
            fits = was is not None and was.size == bias.size
            found[name] = Constant(
                codes, bias, was.reshape(bias.shape) if fits and was is not None else None
            )
    return found


def rounds_floats(quantizer: Quantizer) -> bool:
    """Whether a constant is stored in float and rounded by nodes, as a weight in bfloat16 is."""
    return quantizer.kind == "weight" and len(quantizer.nodes) > 1


def _float(known: Mapping[str, ir.Value], name: str) -> FloatArray | None:
    value = known.get(name)
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _dequantized(value: ir.Value) -> tuple[Array, FloatArray, FloatArray]:
    """Return the integers of a constant, what they stand for, and the step between two."""
    producer = value.producer()
    if producer is None:
        raise ValueError(f"{value.name!r} is not computed")
    data = [
        v.const_value.numpy() if v is not None and v.const_value else None for v in producer.inputs
    ]
    codes, scale = np.asarray(data[0]), np.asarray(data[1], np.float32)
    zero = np.zeros_like(scale) if len(data) < 3 else np.asarray(data[2]).astype(np.float32)
    axis, group = (
        producer.attributes.get_int(name, n) for name, n in (("axis", 1), ("block_size", 0))
    )
    if group and scale.ndim == codes.ndim:
        at = np.arange(codes.shape[axis]) // group
        scale, zero = (np.take(array, at, axis) for array in (scale, zero))
    elif scale.size > 1:
        shape = [1] * codes.ndim
        shape[axis] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return codes, ((codes.astype(np.float32) - zero) * scale).astype(np.float32), scale


def _like(
    codes: Array, weight: FloatArray, step: FloatArray, plain: FloatArray | None
) -> FloatArray | None:
    """Return the float weight if the quantized one was made of it.

    Equalized weights are not, even if they look alike: with some layers as they were before
    and others as after, the model computes something else.
    """
    if plain is None or plain.shape != weight.shape or not weight.size:
        return None
    inside = (codes > codes.min()) & (codes < codes.max())
    far = inside & (np.abs(plain - weight) > _STEP * step)
    return plain if np.count_nonzero(far) <= _STRAY * weight.size else None
