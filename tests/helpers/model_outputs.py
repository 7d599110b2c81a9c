"""Outputs of models in plain onnxruntime, and how near those of a quantized one are."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort

import lowbit


def outputs_of(model: onnx.ModelProto, feeds: list) -> list[np.ndarray]:
    """Return the first output for each sample, without optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return [session.run(None, feed)[0] for feed in feeds]


def sqnr_of(model: onnx.ModelProto, quantized: lowbit.Result, feeds: list) -> float:
    """Return the mean SQNR of the first output, in decibels."""
    pairs = zip(outputs_of(model, feeds), outputs_of(quantized.model, feeds), strict=True)
    return float(
        np.mean([10 * np.log10(np.square(a).sum() / np.square(a - b).sum()) for a, b in pairs])
    )
