"""Whole models in another float type."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx_ir as ir

from lowbit.graph import io
from lowbit.normalize.precision import single_precision

_HALF = ir.DataType.FLOAT16


def half_to_single(model: ir.Model) -> ir.Model:
    """Return a float16 model in float32, inputs and outputs too."""
    model = model.clone()
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype == _HALF:
            value.dtype = ir.DataType.FLOAT
    single_precision(model)
    return model


def single_to_half(model: ir.Model, *, keep_io: bool, infer_shapes: bool) -> ir.Model:
    """Return a float32 model in float16; ``keep_io`` leaves inputs and outputs in float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    message = convert_float_to_float16(
        io.to_proto(model), keep_io_types=keep_io, disable_shape_infer=not infer_shapes
    )
    return io.load(message)


def to_integer_operators(model: ir.Model) -> ir.Model:
    """Return a model of Q/DQ pairs with the integer operators onnxruntime fuses them to."""
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3  # It warns that the file holds what this machine runs best.
    with tempfile.TemporaryDirectory(prefix="lowbit-") as folder:
        written = Path(folder, "model.onnx")
        options.optimized_model_filepath = str(written)
        message = io.to_proto(model).SerializeToString()
        ort.InferenceSession(message, options, providers=["CPUExecutionProvider"])
        return io.load(onnx.load(written))
