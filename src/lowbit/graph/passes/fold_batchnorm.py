"""Fold BatchNormalization into the Conv, ConvTranspose or Gemm before it.

y = gamma * (W x + b - mean) / sqrt(var + eps) + beta, so with f = gamma / sqrt(var + eps):
W' = W * f (per output channel) and b' = (b - mean) * f + beta.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.constants import add_constant, constant
from lowbit.graph.names import absorb

_ABSORBS = ("Conv", "ConvTranspose", "Gemm")


def fold_batchnorm(model: ir.Model) -> None:
    """Fold every BatchNormalization whose input has no other use. Changes ``model``."""
    for node in tuple(model.graph):
        if node.op_type == "BatchNormalization" and node.domain == "":
            _fold(model.graph, node)


def _fold(graph: ir.Graph, norm: ir.Node) -> None:
    source = norm.inputs[0]
    compute = source.producer() if source is not None else None
    if source is None or compute is None or not _can_absorb(compute, source, norm):
        return
    parameters = [constant(value) for value in norm.inputs[1:5]]
    weight = constant(compute.inputs[1])
    if weight is None or any(p is None for p in parameters):
        return
    gamma, beta, mean, var = (np.asarray(p) for p in parameters)
    factor = gamma / np.sqrt(var + np.float32(norm.attributes.get_float("epsilon", 1e-5)))
    bias_value = compute.inputs[2] if len(compute.inputs) > 2 else None
    bias = constant(bias_value)
    if bias_value is not None and bias is None:
        return
    start = np.zeros_like(mean) if bias is None else bias
    if bias is not None and compute.op_type == "Gemm":
        start = np.broadcast_to(start * compute.attributes.get_float("beta", 1.0), mean.shape)
        compute.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
    _replace_input(graph, compute, 1, weight * _per_channel(compute, factor, weight))
    _replace_input(graph, compute, 2, (start - mean) * factor + beta)
    _take_output(graph, compute, norm)


def _can_absorb(compute: ir.Node, source: ir.Value, norm: ir.Node) -> bool:
    if compute.op_type not in _ABSORBS or compute.domain != "":
        return False
    if compute.op_type == "Gemm" and compute.attributes.get_float("alpha", 1.0) != 1.0:
        return False
    training = norm.attributes.get_int("training_mode", 0)
    return not training and len(source.uses()) == 1 and not source.is_graph_output()


def _per_channel(node: ir.Node, factor: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    """Return ``factor`` shaped to multiply the output channels of the weight."""
    shape = [1] * weight.ndim
    if node.op_type == "ConvTranspose":
        # Weights are [in, out/group, ...]: the channel of group g lies in rows of group g.
        group = node.attributes.get_int("group", 1)
        per_row = np.repeat(factor.reshape(group, -1), weight.shape[0] // group, axis=0)
        return per_row.reshape(*per_row.shape, *shape[2:])
    axis = 1 if node.op_type == "Gemm" and not node.attributes.get_int("transB", 0) else 0
    shape[axis] = -1
    return factor.reshape(shape)


def _replace_input(graph: ir.Graph, node: ir.Node, index: int, data: NDArray[Any]) -> None:
    """Give the node its own constant, so that others sharing the old one keep it."""
    old = node.inputs[index] if index < len(node.inputs) else None
    role = ("", "weight", "bias")[index]
    name = str(old.name) if old is not None else f"{node.outputs[0].name}_{role}"
    alone = old is not None and len(old.uses()) == 1
    if old is not None and alone:
        node.replace_input_with(index, None)
        del graph.initializers[str(old.name)]
    elif old is not None:
        name = f"{node.name}_{role}"
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, add_constant(graph, name, data.astype(np.float32)))


def _take_output(graph: ir.Graph, compute: ir.Node, norm: ir.Node) -> None:
    """Let ``compute`` write what ``norm`` wrote, under that tensor's name."""
    absorb(compute, norm)
    old, new = compute.outputs[0], norm.outputs[0]
    ir.convenience.replace_all_uses_with(new, old, replace_graph_outputs=True)
    name = new.name
    old.shape, old.type = new.shape, new.type
    graph.remove(norm, safe=True)
    old.name = name
