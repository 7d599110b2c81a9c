"""Operators that take numbers near zero to very large ones: no format may round to zero before them."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.config.specs import FloatSpec, Spec
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import FloatFormat
from lowbit.ops.traits import Operators, is_data_movement
from lowbit.planning.requests import Placement

_POLE_AT_ZERO = ("Log", "Reciprocal")


def drop_before_poles(graph: ir.Graph, placement: Placement, operators: Operators) -> None:
    """Take back formats that round to zero before operators with a pole there. Changes ``placement``.

    So it is with all that only moves numbers on the way there.
    """
    for node in graph:
        pending = [node] if node.domain == "" and node.op_type in _POLE_AT_ZERO else []
        while pending:
            value = pending.pop().inputs[0]
            request = None if value is None else placement.activations.get(str(value.name))
            if value is None or request is None or not _rounds_to_zero(request.spec):
                continue
            del placement.activations[tensor_name(value)]
            producer = value.producer()
            if producer is not None and is_data_movement(producer, operators):
                pending.append(producer)


def _rounds_to_zero(spec: Spec) -> bool:
    """Whether small numbers become zero; bfloat16 has the exponents of float32."""
    return not (isinstance(spec, FloatSpec) and spec.format is FloatFormat.BFLOAT16)
