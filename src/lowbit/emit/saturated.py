"""Leave out the Clips that quantizers do by saturating."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import SATURATED, constant, drop_unused_constants, only_consumer
from lowbit.ops.traits import clip_bounds

_CLOSE = 1e-5
"""How far the smallest and the largest integer may be inside the bounds: a rounding error."""


def without_saturated(model: ir.Model) -> ir.Model:
    """Return a quantized model without the marked Clips whose bounds the integers after them imply.

    What the quantizer reads keeps its name.
    """
    if not any(node.meta.get(SATURATED) for node in model.graph):
        return model
    model = model.clone()
    for node in tuple(model.graph):
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.meta.get(SATURATED) and source is not None and _is_implied(node):
            name = result.name
            ir.convenience.replace_all_uses_with(result, source)
            model.graph.remove(node, safe=True)
            source.name = name
    drop_unused_constants(model.graph)
    return model


def _is_implied(node: ir.Node) -> bool:
    """Whether the quantizer after a Clip gives the same without it."""
    quantizer = only_consumer(node.outputs[0])
    if quantizer is None or quantizer.op_type != "QuantizeLinear":
        return False
    scale, zero = (constant(value) for value in (*quantizer.inputs[1:3], None)[:2])
    if scale is None or zero is None or scale.size != 1:
        return False
    limits = np.iinfo(zero.dtype)
    low, high = (
        float(scale.reshape(-1)[0]) * (limit - int(zero.reshape(-1)[0]))
        for limit in (limits.min, limits.max)
    )
    least, most = clip_bounds(node)
    room = _CLOSE * (high - low)
    return (least is None or low >= least - room) and (most is None or high <= most + room)
