"""AMD Quark's SmoothQuant: a Mul before each MatMul with constant weights, in its arithmetic.

One difference, where Quark changes the function of the model: a channel that is zero on all of the
data keeps its weights here; there they become zero, and its factor 1e9.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.config.transforms import FloatTransform, check_alpha
from lowbit.graph.editing import replace_constant
from lowbit.graph.session import Array
from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.numerics.powers import float32_power
from lowbit.transforms.channel_statistics import reduce_channels
from lowbit.transforms.implementation import Context, TransformedModel
from lowbit.transforms.layers import WeightedLayer, find_layer, multiply_inputs

_TINY = np.float32(1e-9)


class QuarkSmoothQuant(
    FloatTransform,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="quark-smooth-quant",
):
    """AMD Quark's SmoothQuant: a Mul of its own before each MatMul with constant weights.

    Attributes:
        alpha: How much of the difficulty moves from activations to weights.
    """

    is_optional: ClassVar[bool] = False

    alpha: float = 0.5

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def implementation(self) -> QuarkSmoothing:
        """Return what does the work."""
        return QuarkSmoothing()


class QuarkSmoothing:
    """Quark's SmoothQuant as a transform of a graph."""

    def applies(self, model: ir.Model, config: QuarkSmoothQuant) -> bool:
        """Whether there is a MatMul with constant weights."""
        del config
        return bool(_layers(model.graph))

    def apply(
        self, model: ir.Model, config: QuarkSmoothQuant, context: Context
    ) -> TransformedModel:
        """Return a copy with a Mul before every such MatMul; without data as it is."""
        if context.data is None or not self.applies(model, config):
            return TransformedModel(model)
        model = model.clone()
        layers = _layers(model.graph)
        names = list(dict.fromkeys(layer.source for layer in layers))
        seen = reduce_channels(model, names, context.data, _ranges, np.maximum, context.progress)
        for layer in layers if seen else ():
            ranges = seen[layer.source].astype(np.float32)
            s = quark_factors(ranges, np.abs(layer.weight).max(axis=1), config.alpha)
            name = f"{layer.source}_{layer.node.name}_smooth"
            scale = (1 / (s + _TINY)).astype(np.float32)
            multiply_inputs(model.graph, [layer.node], scale, name)
            replace_constant(model.graph, layer.node, 1, s[:, None] * layer.weight)
        note = f"smoothed like Quark: a Mul before {len(layers)} MatMul"
        return TransformedModel(model, (note,))


def _layers(graph: ir.Graph) -> list[WeightedLayer]:
    found = [find_layer(node) for node in graph if node.op_type == "MatMul"]
    return [layer for layer in found if layer is not None]


def quark_factors(x: FloatArray, w: FloatArray, alpha: float) -> FloatArray:
    """Return what weights are multiplied by, for largest activations and weights."""
    s = float32_power(x, alpha) / float32_power(w + _TINY, 1 - alpha)
    return np.asarray(np.where(x > 0, s, 1), np.float32)


def _ranges(_: str, array: Array) -> DoubleArray:
    flat = array.reshape(-1, array.shape[-1])
    return np.asarray(np.abs(flat).max(axis=0, initial=0), np.float64)
