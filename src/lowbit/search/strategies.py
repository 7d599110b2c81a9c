"""The table of searches for mixed precision: what does the work of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from lowbit.config.mixed_precision import MixedPrecision, PrecisionSearch
from lowbit.errors import ConfigError
from lowbit.numerics.metrics import Metric
from lowbit.pipeline.pipeline import Pipeline
from lowbit.search.mixed_precision import search_by_sensitivity
from lowbit.search.sensitivity_file import MixedPrecisionResult
from lowbit.state import Quantized

Strategy: TypeAlias = Callable[
    [Pipeline, Quantized, Any, Metric | None], tuple[Quantized, MixedPrecisionResult]
]
"""Takes a model in one format, its own configuration and perhaps a distance of the user's."""

STRATEGIES: Mapping[type[PrecisionSearch], Strategy] = MappingProxyType(
    {MixedPrecision: search_by_sensitivity}
)


def search_mixed_precision(
    pipeline: Pipeline, state: Quantized, config: PrecisionSearch, metric: Metric | None
) -> tuple[Quantized, MixedPrecisionResult]:
    """Return the model with layers in other formats, and why these."""
    strategy: Strategy | None = config.strategy() or STRATEGIES.get(type(config))
    if strategy is None:
        raise ConfigError(f"{type(config).__name__} has no strategy: return one from strategy()")
    with pipeline.clock.charge("search"):
        return strategy(pipeline, state, config, metric)
