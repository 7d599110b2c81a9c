"""``lowbit.inspect``: what a model is, and what each target would do with it, without any data."""

from __future__ import annotations

import os
from collections import Counter

import onnx_ir as ir

from lowbit.analyze.quantizers import find_quantizers
from lowbit.api.quantize import ModelSource, planned_state
from lowbit.config.presets import PRESETS, PURPOSES
from lowbit.errors import LowbitError, ModelError
from lowbit.graph import io
from lowbit.graph.parts import is_large
from lowbit.graph.session import session
from lowbit.graph.tensors import every_tensor, tensors_size
from lowbit.report.inspection import Inspection, TargetOutlook, TensorShape


def inspect(model: ModelSource) -> Inspection:
    """Return inputs, operators, sizes and versions of a model, and an outlook for each target.

    Args:
        model: A path, the bytes of a file, or a loaded model.
    """
    loaded = io.load(model)
    graph = loaded.graph
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else graph.name or "the model"
    return Inspection(
        model=str(name),
        producer=" ".join(filter(None, (loaded.producer_name, loaded.producer_version))),
        ir_version=loaded.ir_version,
        opsets={domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()},
        inputs=tuple(_shape(v) for v in graph.inputs if v.name not in graph.initializers),
        outputs=tuple(_shape(v) for v in graph.outputs),
        operators=dict(Counter(_operator(node) for node in graph.all_nodes())),
        constants=sum(tensor.size for tensor in every_tensor(loaded)),
        constant_bytes=tensors_size(loaded),
        quantized_tensors=len(find_quantizers(loaded)),
        not_loaded=_why_not_loaded(loaded),
        targets=tuple(_outlook(model, name) for purpose in PURPOSES for name in purpose.first),
    )


def _why_not_loaded(model: ir.Model) -> str:
    """Return why onnxruntime cannot load a model; nothing if it can, or if that would take long."""
    if is_large(model):
        return ""
    try:
        with session(model):
            return ""
    except ModelError as error:
        return str(error)


def _outlook(model: ModelSource, preset: str) -> TargetOutlook:
    target = PRESETS[preset].config.target
    try:
        state = planned_state(model, preset)
    except LowbitError as error:
        return TargetOutlook(target=target, preset=preset, refused=str(error))
    plan = state.plan
    reasons = Counter(node.why for node in plan.float_nodes).most_common(1)
    return TargetOutlook(
        target=target,
        preset=preset,
        activations=len(plan.activations()),
        weights=len(plan.weights()),
        nodes=state.adapted.graph.num_nodes(),
        float_nodes=len(plan.float_nodes),
        reason=reasons[0][0] if reasons else "",
    )


def _operator(node: ir.Node) -> str:
    return node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}::{node.op_type}"


def _shape(value: ir.Value) -> TensorShape:
    sizes = (
        None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    )
    shown = "?" if sizes is None else "x".join("?" if s is None else str(s) for s in sizes)
    dtype = "unknown" if value.dtype is None else value.dtype.name.lower()
    return TensorShape(name=str(value.name), dtype=dtype, shape=shown or "scalar")
