"""Fold what scales and shifts channels into the linear layer before it.

BatchNormalization, and Mul, Div, Add and Sub by a constant that is one number or one number per
channel, are all y = (x - m) f + o. After x = W v + b that is W' = W f (per output channel) and
b' = (b - m) f + o. For BatchNormalization f = gamma / sqrt(var + eps), m is its mean and o its beta.

All of it in float32 and in this order, as other tools do, so that the weights are theirs to the
last bit.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import add_constant, constant, constant_shape
from lowbit.graph.naming import absorb, answer_to, operator_name
from lowbit.numerics.formats import FloatArray
from lowbit.ops.geometry import LinearLayer
from lowbit.ops.linear import LAYERS, layer_of, linear_operator

_ARITHMETIC = ("Mul", "Div", "Add", "Sub")


@dataclasses.dataclass(frozen=True, slots=True)
class Affine:
    """An affine function per channel: the mean to subtract, the factor, and the offset to add."""

    mean: FloatArray
    factor: FloatArray | None
    """``None`` where there is only an offset, so that weights stay as they are."""
    offset: FloatArray


def fold_affine(model: ir.Model) -> None:
    """Fold every such node whose input has no other use. Changes ``model``.

    A chain folds in one sweep: what was folded writes the folded node's output.
    """
    for node in tuple(model.graph):
        if node.domain == "" and node.op_type in (*_ARITHMETIC, "BatchNormalization"):
            _fold(model.graph, node)


def fold_gemm_factors(model: ir.Model) -> None:
    """Make Gemm's alpha part of constant weights. Changes ``model``.

    The fused kernel of onnxruntime scales the bias by it too, up to 1.26.
    """
    for node in model.graph:
        alpha = node.attributes.get_float("alpha", 1.0) if operator_name(node) == "Gemm" else 1.0
        weight = _floats(node.inputs[1]) if alpha != 1.0 else None
        if weight is not None:
            _replace_input(model.graph, node, 1, weight * np.float32(alpha))
            node.attributes["alpha"] = ir.AttrFloat32("alpha", 1.0)


def normalization(node: ir.Node) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Return mean, factor and offset of a BatchNormalization; ``None`` if it trains or they vary."""
    extra = any(value.name or value.uses() for value in node.outputs[1:])
    if extra or node.attributes.get_int("training_mode", 0) != 0:
        return None
    parameters = [_floats(value) for value in node.inputs[1:5]]
    if len(parameters) < 4 or any(p is None for p in parameters):
        return None
    gamma, beta, mean, var = (np.asarray(p, np.float32) for p in parameters)
    epsilon = np.float32(node.attributes.get_float("epsilon", 1e-5))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.asarray(gamma / np.sqrt(var + epsilon), np.float32)
    return mean, factor, beta


def _fold(graph: ir.Graph, node: ir.Node) -> None:
    source = _data_input(node)
    compute = source.producer() if source is not None else None
    layer = _absorbing(graph, compute, source)
    if source is None or compute is None or layer is None:
        return
    weight, bias = _floats(compute.inputs[1]), _bias(compute)
    if weight is None or bias is None:
        return
    affine = _affine(node, source, layer.channels, weight.ndim)
    if affine is None or not _is_finite(affine):
        return
    if affine.factor is not None:
        scaled = np.array(weight, order="C")
        kernel = layer.kernel(scaled)
        # Per channel, or one number for all.
        factor = np.broadcast_to(affine.factor, layer.channels).reshape(*kernel.shape[:2], 1, 1)
        np.multiply(kernel, factor, out=kernel)
        _replace_input(graph, compute, 1, scaled)
        bias = (bias - affine.mean) * affine.factor
    if bias.any() or affine.offset.any():
        _replace_input(graph, compute, 2, bias + affine.offset)
        if "beta" in compute.attributes:
            compute.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
    _take_output(graph, compute, node)


def _data_input(node: ir.Node) -> ir.Value | None:
    """Return the input that is not a constant, if there is exactly one candidate."""
    if node.op_type == "BatchNormalization":
        return node.inputs[0]
    varying = [value for value in node.inputs if constant_shape(value) is None]
    return varying[0] if len(varying) == 1 and len(node.inputs) == 2 else None


def _absorbing(
    graph: ir.Graph, compute: ir.Node | None, source: ir.Value | None
) -> LinearLayer | None:
    """Return the layer before, if it has a place for a bias and nothing else reads its output."""
    row = linear_operator(compute) if compute is not None else None
    if compute is None or source is None or row is None or row.bias is None:
        return None
    if compute.graph is not graph or len(source.uses()) != 1 or source.is_graph_output():
        return None
    layer = layer_of(compute)
    return None if isinstance(layer, str) else layer


def _bias(compute: ir.Node) -> FloatArray | None:
    """Return the bias as it is added (zero if there is none), or ``None`` if it varies."""
    value = compute.inputs[2] if len(compute.inputs) > 2 else None
    if value is None:
        return np.zeros(1, np.float32)
    bias = _floats(value)
    factor = np.float32(LAYERS[operator_name(compute)].bias_factor(compute))
    return bias if bias is None or factor == 1 else bias * factor


def _affine(node: ir.Node, source: ir.Value, channels: int, rank: int) -> Affine | None:
    """Return what the node does to each channel of ``source``."""
    if node.op_type == "BatchNormalization":
        parameters = normalization(node)
        return None if parameters is None else Affine(*parameters)
    first = node.inputs[0] is source
    number = _channel_numbers(node.inputs[1 if first else 0], channels, rank)
    return None if number is None else _arithmetic(node.op_type, number, first=first)


def _arithmetic(op_type: str, number: FloatArray, *, first: bool) -> Affine | None:
    """Return the effect of an operator whose other input, the first or second, is ``number``."""
    zero = np.zeros_like(number)
    match op_type, first:
        case "Add", _:
            return Affine(zero, None, number)
        case "Sub", True:
            return Affine(zero, None, -number)
        case "Sub", False:
            return Affine(zero, zero - 1, number)
        case "Mul", _:
            return Affine(zero, number, zero)
        case "Div", True if np.all(number != 0):
            return Affine(zero, np.reciprocal(number), zero)
    return None


def _channel_numbers(value: ir.Value | None, channels: int, rank: int) -> FloatArray | None:
    """Return one number per channel, if the constant broadcasts along no other axis."""
    shape = constant_shape(value)
    if shape is None or len(shape) > rank:
        return None
    aligned = (1,) * (rank - len(shape)) + shape
    if aligned[1] not in (1, channels) or any(n != 1 for i, n in enumerate(aligned) if i != 1):
        return None
    data = _floats(value)
    return None if data is None else np.broadcast_to(data.reshape(-1), channels)


def _is_finite(affine: Affine) -> bool:
    numbers = (
        affine.mean,
        affine.offset,
        affine.offset if affine.factor is None else affine.factor,
    )
    return all(bool(np.isfinite(part).all()) for part in numbers)


def _replace_input(graph: ir.Graph, node: ir.Node, index: int, data: FloatArray) -> None:
    """Give the node its own constant, so that others sharing the old one keep it."""
    old = node.inputs[index] if index < len(node.inputs) else None
    role = ("", "weight", "bias")[index]
    name = f"{node.outputs[0].name if old is None else node.name}_{role}"
    if old is not None and len(old.uses()) == 1 and not old.is_graph_output():
        name = str(old.name)
        node.replace_input_with(index, None)
        del graph.initializers[name]
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, add_constant(graph, name, _stored(data, index)))


def _stored(data: FloatArray, index: int) -> FloatArray:
    """Return what is stored; a Gemm's bias of shape [1, C] as [C], like every other bias."""
    is_row = index == 2 and data.ndim > 1 and data.size == data.shape[-1]
    return data.reshape(-1) if is_row else data


def _take_output(graph: ir.Graph, compute: ir.Node, gone: ir.Node) -> None:
    """Make ``compute`` write the output of ``gone``, under that tensor's name."""
    old, new = compute.outputs[0], gone.outputs[0]
    absorb(compute, gone)
    answer_to(compute, old.name)
    ir.convenience.replace_all_uses_with(new, old, replace_graph_outputs=True)
    name = new.name
    old.shape, old.type = new.shape or old.shape, new.type or old.type
    graph.remove(gone, safe=True)
    old.name = name


def _floats(value: ir.Value | None) -> FloatArray | None:
    data = constant(value)
    return (
        data.astype(np.float32, copy=False) if data is not None and data.dtype.kind == "f" else None
    )
