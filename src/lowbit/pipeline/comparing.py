"""How far a quantized model is from its float reference."""

from __future__ import annotations

import os
import time
from typing import Any

import lowbit
from lowbit.data import Preprocessing, open_data
from lowbit.graph import io
from lowbit.pipeline.preparing import ModelSource, model_inputs
from lowbit.pipeline.verifying import constants_size
from lowbit.verify.compare import compare_models, of_layers, of_outputs
from lowbit.verify.report import Report, scores


def compare(
    reference: ModelSource,
    quantized: ModelSource,
    data: Any,
    *,
    limit: int | None = None,
    preprocessing: Preprocessing | str | None = None,
) -> Report:
    """Measure how far a quantized model is from its float reference, on the given data."""
    float_model, other = io.load(reference), io.load(quantized)
    samples = open_data(data, model_inputs(float_model), preprocessing=preprocessing, limit=limit)
    start = time.perf_counter()
    names = [str(v.name) for node in float_model.graph for v in node.outputs if v.name]
    references = [of_outputs(float_model, other), of_layers(float_model, other, names)]
    outputs, layers = compare_models(references, other, samples, threads=os.cpu_count() or 1)
    return Report(
        preset=other.metadata_props.get("lowbit.preset", "unknown"),
        target=other.metadata_props.get("lowbit.target", "unknown"),
        version=lowbit.__version__,
        data=samples.description,
        calibration_samples=0,
        verification_samples=len(samples),
        held_out=True,
        outputs=scores(outputs),
        layers=scores(layers),
        size_before=constants_size(float_model),
        size_after=constants_size(other),
        seconds={"compare": time.perf_counter() - start},
    )
