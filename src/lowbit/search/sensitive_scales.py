"""Scales of activations by sensitivity: those of least error at the outputs, found in one pass."""

from __future__ import annotations

import dataclasses

import msgspec
import onnx_ir as ir

from lowbit.config.scale_search import SensitivityWeighting
from lowbit.errors import ModelError
from lowbit.evaluate.outputs import OutputSlice
from lowbit.evaluate.validation import Validation
from lowbit.graph.parts import is_large
from lowbit.ops.gradients import OutputPart
from lowbit.pipeline.pipeline import Pipeline
from lowbit.pipeline.sensitivity import measure_sensitivity, mse_tensors
from lowbit.pipeline.verify import quantized_names
from lowbit.state import Calibrated, Quantized, extended


def weighted_scales(
    pipeline: Pipeline, state: Quantized, config: SensitivityWeighting, seen: Validation
) -> Quantized | None:
    """Return the model with scales by sensitivity, or ``None`` where no scale follows from it.

    ``seen`` says at which tensors of the float model its outputs are measured.
    """
    samples = state.samples
    if samples is None or samples.data.is_random or is_large(state.adapted):
        return None
    tensors = mse_tensors(state)
    outputs = measured_outputs(state, seen)
    if not tensors or not outputs:
        return None
    changed = msgspec.structs.replace(state.config, sensitivity=config)
    with pipeline.clock.stage("sensitivity"):
        feeds = samples.fitting().spread(config.samples)
        try:
            found = measure_sensitivity(extended(state, Calibrated, config=changed), feeds, outputs)
        except ModelError:
            # The graph with gradients is lowbit's own: that onnxruntime refuses it is no fault of the model.
            return None
    if all(found.stats[name].sensitivity is None for name in tensors):
        return None
    return pipeline.finish(found)


def measured_outputs(state: Quantized, seen: Validation) -> list[OutputPart]:
    """Return where outputs are measured, of those tensors that the adapted model has."""
    values = ir.convenience.create_value_mapping(state.adapted.graph, include_subgraphs=False)
    return [
        dataclasses.replace(
            _part(row.part),
            is_one=row.kind == "scores",
            read_at=None if row.scores is None else _part(row.scores),
        )
        for row in seen.measured(quantized_names(state))
        if row.tensor in values and values[row.tensor].producer() is not None
    ]


def _part(part: OutputSlice) -> OutputPart:
    return OutputPart(part.output, part.axis, part.start, part.stop)
