"""The stage that measures how sensitive the outputs are to errors in activations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from lowbit.calibrate.masked import mask_input
from lowbit.calibrate.sensitivity_pass import collect_sensitivity
from lowbit.config.methods import MinMse
from lowbit.graph.session import Feed, model_inputs
from lowbit.ops.gradients import OutputPart
from lowbit.pipeline.stages import with_stats
from lowbit.state import Calibrated


def measure_sensitivity(
    state: Calibrated, feeds: Iterable[Feed], outputs: Sequence[OutputPart]
) -> Calibrated:
    """Add the sensitivity of ``outputs`` to errors in activations to the statistics."""
    mask = "" if state.target.calibrate_padding else mask_input(model_inputs(state.adapted))
    found = collect_sensitivity(state.adapted, mse_tensors(state), outputs, feeds, mask)
    tensors = dict(state.stats.tensors)
    for name, sensitivity in found.items():
        tensors[name] = dataclasses.replace(tensors[name], sensitivity=sensitivity)
    return with_stats(state, dataclasses.replace(state.stats, tensors=tensors))


def mse_tensors(state: Calibrated) -> list[str]:
    """Return the activations whose scale has the least squared error (``MinMse``)."""
    return [
        row.observe
        for row in state.plan.activations()
        if row.range is None and row.is_calibrated and isinstance(row.spec.calibration, MinMse)
    ]
