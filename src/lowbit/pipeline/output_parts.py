"""Where the outputs of a model are measured, as parts of tensors that have gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from lowbit.evaluate.detections import is_sparse
from lowbit.evaluate.output_kinds import MeasuredOutput, measured_tensors
from lowbit.evaluate.outputs import OutputSlice
from lowbit.evaluate.validation import Validation
from lowbit.ops.gradients import OutputPart
from lowbit.pipeline.verify import quantized_names
from lowbit.state import Quantized

_CHANNELS = 2
"""The axes of an output of nothing but samples and channels."""

_SEEN = 4
"""Samples on which it is measured which outputs are read at few positions, and the SQNR of each."""


def measured_outputs(state: Quantized, found: Mapping[MeasuredOutput, float]) -> list[OutputPart]:
    """Return where outputs are measured, of those tensors that the adapted model has.

    Each counts relative to the error that was ``found``, as it does in an SQNR in decibels: boxes in pixels have
    next to none beside scores.
    """
    values = ir.convenience.create_value_mapping(state.adapted.graph, include_subgraphs=False)
    known = {
        row: decibels
        for row, decibels in found.items()
        if row.tensor in values and values[row.tensor].producer() is not None
    }
    worst = min(known.values(), default=0.0)
    return [
        dataclasses.replace(_part_of(row), counts=10 ** ((decibels - worst) / 20))
        for row, decibels in known.items()
    ]


def sparse_outputs(state: Quantized) -> list[OutputPart]:
    """Return where a detector's outputs are measured, nothing of other models."""
    if state.samples is None or not _has_positions(state.loaded):
        return []
    seen = Validation(state.loaded, state.samples.calibration().spread(_SEEN))
    names = quantized_names(state)
    if not any(_is_sparse(row, seen) for row in seen.measured(names)):
        return []
    (found,) = seen.ratios([state.emitted.model], names)
    return measured_outputs(state, found.of_outputs)


def _has_positions(model: ir.Model) -> bool:
    """Whether outputs may have positions: more axes than samples and channels, where these are known."""
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    shapes = (values[name].shape for name in measured_tensors(model) if name in values)
    return any(shape is None or len(shape) > _CHANNELS for shape in shapes)


def _is_sparse(row: MeasuredOutput, seen: Validation) -> bool:
    """Whether an output is scores that show something at few positions, or is read only there."""
    if row.scores is not None:
        return True
    arrays = (row.part.of(sample.outputs[row.tensor]) for sample in seen.samples)
    axis = row.part.axis
    return row.kind == "scores" and any(is_sparse(a, 1 if axis is None else axis) for a in arrays)


def _part_of(row: MeasuredOutput) -> OutputPart:
    return dataclasses.replace(
        _part(row.part),
        is_one=row.kind == "scores",
        read_at=None if row.scores is None else _part(row.scores),
    )


def _part(part: OutputSlice) -> OutputPart:
    return OutputPart(part.output, part.axis, part.start, part.stop)
