"""Scales of activations by sensitivity: those of least error at the outputs, found in one pass."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lowbit.config.scale_search import SensitivityWeighting
from lowbit.errors import ModelError
from lowbit.evaluate.output_kinds import MeasuredOutput
from lowbit.graph.parts import is_large
from lowbit.pipeline.output_parts import measured_outputs
from lowbit.pipeline.pipeline import Pipeline
from lowbit.pipeline.sensitivity import measure_sensitivity, mse_tensors
from lowbit.state import Calibrated, Quantized, extended

_MORE = 2
"""How many times as many samples a detector has: a sample shows few objects, whose values are the largest."""


def weighted_scales(
    pipeline: Pipeline,
    state: Quantized,
    config: SensitivityWeighting,
    measured: Mapping[MeasuredOutput, float],
) -> Quantized | None:
    """Return the model with scales by sensitivity, or ``None`` where no scale follows from it.

    ``measured`` says at which tensors of the float model its outputs are measured, and the SQNR of each.
    """
    samples = state.samples
    if samples is None or samples.data.is_random or is_large(state.adapted):
        return None
    tensors = mse_tensors(state)
    outputs = measured_outputs(state, measured)
    if not tensors or not outputs:
        return None
    changed = msgspec.structs.replace(state.config, sensitivity=config)
    with pipeline.clock.stage("sensitivity"):
        more = _MORE if any(part.read_at is not None for part in outputs) else 1
        feeds = samples.fitting().spread(more * config.samples)
        try:
            found = measure_sensitivity(extended(state, Calibrated, config=changed), feeds, outputs)
        except ModelError:
            # The graph with gradients is lowbit's own: that onnxruntime refuses it is no fault of the model.
            return None
    if all(found.stats[name].sensitivity is None for name in tensors):
        return None
    return pipeline.finish(found)
