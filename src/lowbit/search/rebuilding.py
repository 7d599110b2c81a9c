"""A model built again with another configuration, from what is known of it already."""

from __future__ import annotations

import dataclasses

from lowbit.config.config import QuantConfig
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Pipeline
from lowbit.state import Quantized, Transformed, extended


def rebuilt(pipeline: Pipeline, state: Quantized, config: QuantConfig) -> Quantized:
    """Return the model of another configuration; only statistics that are missing are collected.

    The configuration has to have the same transforms: the float model stays.
    """
    planned = pipeline.planned(extended(state, Transformed, config=config))
    samples, stats = state.samples, state.stats
    if samples is not None and stages.lacks_statistics(planned.plan, stats):
        more = pipeline.calibrated(planned, samples.calibration).stats
        stats = dataclasses.replace(stats, tensors={**stats.tensors, **more.tensors})
    return pipeline.finish(stages.with_stats(planned, stats))
