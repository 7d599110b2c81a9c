"""Measure latency: several models in turn on the same sample, with intervals."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import msgspec
import onnx_ir as ir

from lowbit.errors import ConfigError
from lowbit.files import temporary_folder
from lowbit.graph import io
from lowbit.graph.openvino import Runtime, openvino_session
from lowbit.graph.profiling import DeployedSession
from lowbit.graph.session import Feed, model_inputs

_WARM_UP, _LEAST = 3, 5
_LONGEST = 30.0
"""Seconds after which no further round is begun, however many runs are asked for."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of one model: the median, and between which figures it lies with 95 %.

    ``ratio`` is how many times as fast as the first model it is, measured in pairs of runs.
    """

    model: str
    median_ms: float
    low_ms: float
    high_ms: float
    runs: int
    ratio: float
    ratio_low: float
    ratio_high: float


def benchmark(
    models: Mapping[str, ir.Model],
    feed: Feed,
    *,
    runs: int = 50,
    threads: int = 0,
    provider: str | None = None,
    runtime: Runtime = "onnxruntime",
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Timing, ...]:
    """Run the models in turn, so that whatever else the machine does meets all of them alike.

    Args:
        models: The models by name; ratios are to the first.
        feed: One sample, for all of them.
        runs: How often each is run, less often where that takes over half a minute.
        threads: Threads of the runtime; 0 lets it choose.
        provider: An execution provider of onnxruntime, the CPU's if not given.
        runtime: What runs them.
        progress: Told how many rounds are done.
    """
    if not models:
        raise ConfigError("no model to run: give at least one")
    if runtime != "onnxruntime" and provider is not None:
        raise ConfigError(f"provider {provider!r} is onnxruntime's, but the runtime is {runtime}")
    _check_inputs(models, feed)
    times: list[list[float]] = [[] for _ in models]
    with ExitStack() as stack:
        runs_of = [_opened(stack, model, threads, provider, runtime) for model in models.values()]
        for run in runs_of:
            for _ in range(_WARM_UP):
                run(feed)
        start = time.perf_counter()
        for done in range(1, runs + 1):
            for own, run in zip(times, runs_of, strict=True):
                own.append(run(feed))
            progress(done)
            if done >= min(_LEAST, runs) and time.perf_counter() - start > _LONGEST:
                break
    return tuple(_timing(name, own, times[0]) for name, own in zip(models, times, strict=True))


def _opened(
    stack: ExitStack, model: ir.Model, threads: int, provider: str | None, runtime: Runtime
) -> Callable[[Feed], float]:
    """Return what runs a model once and tells how many seconds that took."""
    if runtime == "openvino":
        return stack.enter_context(openvino_session(model, threads=threads)).timed
    folder = str(stack.enter_context(temporary_folder()))
    return DeployedSession(stack.enter_context(io.as_file(model)), folder, threads, provider).run


def _check_inputs(models: Mapping[str, ir.Model], feed: Feed) -> None:
    for name, model in models.items():
        wanted = [info.name for info in model_inputs(model)]
        if set(wanted) != set(feed):
            raise ConfigError(
                f"{name} has the inputs {', '.join(wanted)}, the sample is for {', '.join(feed)}: "
                "models that are compared need the same inputs"
            )


def _timing(name: str, own: Sequence[float], first: Sequence[float]) -> Timing:
    median, low, high = median_interval([1000 * value for value in own])
    ratios = [a / b for a, b in zip(first, own, strict=True)]
    ratio, ratio_low, ratio_high = median_interval(ratios)
    return Timing(
        model=name,
        median_ms=median,
        low_ms=low,
        high_ms=high,
        runs=len(own),
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
    )


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval, by the order of the values alone."""
    ranked = sorted(values)
    count = len(ranked)
    # So far from the middle the median of as many draws lies in one case of twenty.
    far = 1.96 * math.sqrt(count) / 2
    low, high = math.floor(count / 2 - far), math.ceil(count / 2 + far)
    return (statistics.median(ranked), ranked[max(0, low)], ranked[min(count - 1, high)])
