"""A built model as a graph, and where it comes from in its metadata."""

from __future__ import annotations

import onnx_ir as ir

import lowbit
from lowbit.config.files import config_json
from lowbit.data import Data
from lowbit.emit.qdq import emit_qdq
from lowbit.pipeline.building import Built


def emit(built: Built) -> ir.Model:
    """Return the quantized model."""
    config = built.config
    return emit_qdq(
        built.ready.adapted,
        built.plan,
        built.params,
        built.weights,
        domain=config.domain,
        casts=config.casts,
        half_weights=config.half_weights,
    )


def sign(quantized: ir.Model, built: Built, data: Data) -> None:
    """Write into the model's metadata how it was made."""
    quantized.producer_name, quantized.producer_version = "lowbit", lowbit.__version__
    quantized.metadata_props.update(
        {
            "lowbit.version": lowbit.__version__,
            "lowbit.preset": built.plan.preset,
            "lowbit.target": built.plan.target,
            "lowbit.config": config_json(built.config),
            "lowbit.data": f"{data.description} (sha256 {data.fingerprint()})",
        }
    )
