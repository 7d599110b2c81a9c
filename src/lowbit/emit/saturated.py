"""Leave out the Clips that quantizers do by saturating, and put them back to look at the model in float.

Their bounds are in the model's metadata.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import (
    SATURATED,
    add_constant,
    constant,
    drop_unused_constants,
    insert_after,
    only_consumer,
)
from lowbit.graph.naming import tensor_name
from lowbit.ops.traits import clip_bounds

_KEY = "lowbit.saturated"

_Bounds: TypeAlias = dict[str, tuple[float | None, float | None]]

_CLOSE = 1e-5
"""How far the smallest and the largest integer may be inside the bounds: a rounding error."""


def without_saturated(model: ir.Model) -> ir.Model:
    """Return a quantized model without the marked Clips whose bounds the integers after them imply.

    What the quantizer reads keeps its name.
    """
    if not any(node.meta.get(SATURATED) for node in model.graph):
        return model
    model = model.clone()
    bounds: _Bounds = {}
    for node in tuple(model.graph):
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.meta.get(SATURATED) and source is not None and _is_implied(node):
            name = tensor_name(result)
            bounds[name] = clip_bounds(node)
            ir.convenience.replace_all_uses_with(result, source)
            model.graph.remove(node, safe=True)
            source.name = name
    drop_unused_constants(model.graph)
    model.metadata_props[_KEY] = msgspec.json.encode(bounds).decode()
    return model


def with_saturated(model: ir.Model) -> ir.Model:
    """Return a quantized model with the Clips that were left out: in float nothing else does the same."""
    try:
        bounds = msgspec.json.decode(model.metadata_props.get(_KEY, "{}"), type=_Bounds)
    except msgspec.MsgspecError:  # not ours
        return model
    if not bounds:
        return model
    model = model.clone()
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    for name, limits in bounds.items():
        value = values.get(name)
        if value is None or value.producer() is None:
            continue
        constants = [
            None
            if limit is None
            else add_constant(model.graph, f"{name}_bound", np.array(limit, np.float32))
            for limit in limits
        ]
        clip = ir.node("Clip", [value, *constants], name=f"{name}_clip")
        insert_after(model.graph, clip, f"{name}_unclipped")
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
