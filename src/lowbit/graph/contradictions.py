"""Correct shapes that contradict each other: onnx's inference errs for a few operators."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import onnx_ir as ir

from lowbit.errors import ModelError
from lowbit.graph.naming import tensor_name
from lowbit.graph.nesting import subgraphs
from lowbit.graph.session import session


def has_contradictions(graph: ir.Graph) -> bool:
    """Whether nothing could be inferred of what some node writes, though all is known of what it reads."""
    return any(_contradicts(node) for node in graph)


def correct_shapes(model: ir.Model) -> None:
    """Replace the shapes of inner values by those that onnxruntime infers, where they differ. Changes ``model``.

    A model that says wrong ones is not loaded, though without them it would be.
    """
    inner = [v for node in model.graph for v in node.outputs if v.name and v.dtype is not None]
    inferred = {value: value.shape for value in inner}
    for value in inner:
        value.shape = None
    known: Mapping[str, tuple[ir.TensorType, ir.Shape | None]] = {}
    with (
        contextlib.suppress(ModelError),  # it cannot be run here, and need not: it is only planned
        session(model, [tensor_name(value) for value in inner]) as running,
    ):
        known = running.output_types
    for value, shape in inferred.items():
        _, other = known.get(tensor_name(value), (None, None))
        value.shape = other if _differ(shape, other) else shape


def _contradicts(node: ir.Node) -> bool:
    """Whether a shape is unknown that follows from those that the node reads.

    It does where a standard operator reads no integers, which might be sizes.
    """
    if node.domain or subgraphs(node) or not node.inputs:
        return False
    read = [value for value in node.inputs if value is not None]
    sure = all(v.shape is not None and v.dtype == ir.DataType.FLOAT for v in read)
    return sure and any(v.name and v.shape is None for v in node.outputs if _is_tensor(v))


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def _differ(inferred: ir.Shape | None, known: ir.Shape | None) -> bool:
    """Whether both give sizes that differ, or only onnxruntime gives any."""
    if known is None:
        return False
    if inferred is None or len(inferred) != len(known):
        return True
    pairs = zip(inferred, known, strict=True)
    return any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
