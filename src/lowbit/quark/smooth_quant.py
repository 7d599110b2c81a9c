"""AMD Quark's SmoothQuant: a Mul before each MatMul with constant weights, in its arithmetic.

One difference, where Quark changes the function of the model: a channel that is zero on all of the
data keeps its weights here; there they become zero, and its factor 1e9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from lowbit.config.transforms import QuarkSmoothQuant
from lowbit.graph.session import Array, Feed
from lowbit.numerics.formats import FloatArray
from lowbit.transforms._cross_layer_math import DoubleArray
from lowbit.transforms.channel_statistics import reduce_channels
from lowbit.transforms.cross_layer import Equalized
from lowbit.transforms.layers import find_layer, give_constant, multiply_inputs

_TINY = np.float32(1e-9)


def smooth_like_quark(
    model: ir.Model,
    config: QuarkSmoothQuant,
    data: Iterable[Feed],
    progress: Callable[[int], None],
) -> Equalized:
    """Smooth a model. Changes ``model``."""
    layers = [find_layer(node) for node in model.graph if node.op_type == "MatMul"]
    found = [layer for layer in layers if layer is not None]
    names = list(dict.fromkeys(layer.source for layer in found))
    seen = reduce_channels(model, names, data, _peaks, np.maximum, progress) if names else {}
    for layer in found if seen else ():
        peaks = seen[layer.source].astype(np.float32)
        s = quark_factors(peaks, np.abs(layer.weight).max(axis=1), config.alpha)
        name = f"{layer.source}_{layer.node.name}_smooth"
        scale = (1 / (s + _TINY)).astype(np.float32)
        multiply_inputs(model.graph, [layer.node], scale, name)
        give_constant(model.graph, layer.node, 1, s[:, None] * layer.weight)
    return Equalized(model, (f"smoothed like Quark: a Mul before {len(found)} MatMul",))


def quark_factors(x: FloatArray, w: FloatArray, alpha: float) -> FloatArray:
    """Return what weights are multiplied by, for peaks of activations and weights."""
    s = np.power(x, np.float32(alpha)) / np.power(w + _TINY, np.float32(1 - alpha))
    return np.asarray(np.where(x > 0, s, 1), np.float32)


def _peaks(_: str, array: Array) -> DoubleArray:
    flat = array.reshape(-1, array.shape[-1])
    return np.asarray(np.abs(flat).max(axis=0, initial=0), np.float64)
