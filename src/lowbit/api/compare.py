"""``lowbit.compare``: compare a quantized model with its float model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
import onnx_ir as ir

from lowbit.analyze.quantizers import find_quantizers
from lowbit.analyze.tensors import TensorAnalysis, analyze_tensors, noise_of
from lowbit.api.comparison_report import comparison_report
from lowbit.api.quantize import ModelSource, Result, quantize
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import convert, decode_json
from lowbit.config.transforms import Rescaling
from lowbit.data import Data, Preprocessing, Tokenization, open_data
from lowbit.emit.bodies import with_bodies
from lowbit.emit.saturated import with_saturated
from lowbit.errors import ConfigError, DataError
from lowbit.evaluate.accuracy import (
    Metric,
    MetricScorer,
    Scorer,
    TopScorer,
    find_metric,
)
from lowbit.evaluate.compare_models import (
    Comparison,
    compare_outputs,
    output_reference,
    spread,
)
from lowbit.evaluate.labels import BATCHES, Label, read_labels, without_labels
from lowbit.evaluate.latency import Latency, measure_latency
from lowbit.evaluate.output_kinds import measured_tensors
from lowbit.evaluate.random_outputs import mark_drawn
from lowbit.evaluate.runner import Outputs, output_names
from lowbit.graph import io
from lowbit.graph.openvino import Runtime, check_runtime
from lowbit.graph.profiling import saturates_int8
from lowbit.graph.session import model_inputs
from lowbit.normalize.inputs import check_same_inputs, settle_like
from lowbit.normalize.normalize import normalize
from lowbit.numerics.metrics import decibels
from lowbit.pipeline.pipeline import Clock, Progress, ignore_progress
from lowbit.report.values import Report
from lowbit.targets.builtin import find_target
from lowbit.targets.target import Target
from lowbit.transforms import Context, implementation_of

_CALIBRATED_ON = 64

Effort = Literal["none", "quick", "full"]

_MOST, _ONE_IN = 8, 10
"""Samples to analyze tensors on: one in ten, at most eight."""

_FUSED = 16
# Samples whose outputs are shown side by side.
_SHOWN = 4
_PER_SAMPLE, _LEAST_EFFORT = 0.4, 3.0
"""Pairs of plain passes that measuring the sensitivity of every tensor may take."""


def compare(
    reference: ModelSource,
    quantized: ModelSource,
    data: Any,
    *,
    limit: int | None = None,
    preprocessing: Preprocessing | Tokenization | str | None = None,
    budget: Effort = "quick",
    labels: str | Sequence[Label] | None = None,
    metric: str | Metric | None = None,
    tolerance: float = 1.0,
    timed: bool = False,
    runtime: Runtime = "onnxruntime",
    calibration: Any = None,
    floats: ir.Model | None = None,
    progress: Progress = ignore_progress,
) -> Report:
    """Measure how far a quantized model is from its float reference, on the given data.

    Args:
        reference: The float model.
        quantized: The quantized model.
        data: As for ``lowbit.quantize``.
        limit: How many samples to compare on; all of them if not given.
        preprocessing: How images become inputs.
        budget: How much to find out about tensors: ``quick`` within a few passes over the data,
            ``full`` every tensor on eight samples, ``none`` nothing.
        labels: A label for each sample, where they are (``lowbit.evaluate.labels``), or ``batches`` for
            the last part of each batch of a DataLoader: top-1 and top-5 are measured as well.
        metric: ``metric(outputs, label)`` or its ``module:function``, instead of top-1.
        tolerance: The accuracy gap for which the number of samples needed is estimated.
        timed: Measure how long both models take here.
        runtime: Whose kernels run as well, in addition to exact arithmetic: ``onnxruntime`` or ``openvino``.
        calibration: Data to quantize again on, with the suggestion that gained most.
        floats: The model that was quantized, where its weights are no longer the reference's own.
        progress: Called with stage, done and total.
    """
    _check_choices(runtime, budget)
    clock, (float_model, other) = Clock(progress), _load_both(reference, quantized)
    samples, known = _open(float_model, data, labels, preprocessing, limit)
    scorer, fused = _scorer(known, metric), bool(find_quantizers(other))
    with clock.stage("compare"):
        found = _compare_outputs(
            float_model, other, samples, scorer, known, budget, clock, fused=fused, runtime=runtime
        )
    analysis = None
    if fused and found.samples and found.slices:
        with clock.stage("analyze"):
            analysis = _analyze(float_model, other, found, floats, _effort(len(samples), budget))
    if analysis is not None and calibration is not None:
        with clock.stage("quantize again"):
            analysis = _quantized_again(
                float_model, other, analysis, found, calibration, preprocessing, progress
            )
    latency = _latency(float_model, other, found, clock) if timed else None
    report = comparison_report(float_model, other, samples, found, analysis, latency, runtime)
    if scorer is not None:
        doubts = (*scorer.doubts(), *report.doubts)
        report = msgspec.structs.replace(report, accuracy=scorer.figures(tolerance), doubts=doubts)
    return msgspec.structs.replace(report, seconds=clock.seconds)


def _check_choices(runtime: Runtime, budget: Effort) -> None:
    check_runtime(runtime)
    if budget not in get_args(Effort):
        raise ConfigError(f"unknown budget {budget!r} (known: {', '.join(get_args(Effort))})")


def _latency(
    float_model: ir.Model, other: ir.Model, found: Comparison, clock: Clock
) -> Latency | None:
    if not found.samples:
        return None
    with clock.stage("time"):
        return measure_latency(float_model, other, found.samples[0].feed)


def _load_both(reference: ModelSource, quantized: ModelSource) -> tuple[ir.Model, ir.Model]:
    """Return both models, the float one with inputs fixed as they are in the quantized one."""
    float_model, other = io.load(reference), with_bodies(io.load(quantized))
    settle_like(float_model, other)
    check_same_inputs(float_model, other)
    return float_model, other


def _compare_outputs(
    float_model: ir.Model,
    other: ir.Model,
    samples: Data,
    scorer: Scorer | None,
    labels: Sequence[Label],
    budget: Effort,
    clock: Clock,
    *,
    fused: bool,
    runtime: Runtime,
) -> Comparison:
    total, done = len(samples), 0
    mark_drawn(float_model, next(iter(samples)))
    everywhere = scorer is not None or runtime != "onnxruntime"

    def listener(*runs: Outputs | None) -> None:
        nonlocal done
        if scorer is not None:
            scorer.add(runs, labels[done])
        clock.tell("compare", done := done + 1, total)

    return compare_outputs(
        float_model,
        other,
        list(output_reference(float_model, other).pairs),
        samples,
        fused=spread(total, total if everywhere else _FUSED) if fused else frozenset(),
        keep=spread(total, _analyzed_on(total, budget)),
        listener=listener,
        runtime=runtime,
        show=0 if budget == "none" else _SHOWN,
        measured=_measured(float_model, other),
        fused_decides=runtime != "onnxruntime" or _saturates(other),
    )


def _measured(float_model: ir.Model, other: ir.Model) -> dict[str, str]:
    """Return what the quantized model calls the tensors that outputs are measured at."""
    outputs, have = output_names(float_model), _names(other)
    quantizers = (q for q in find_quantizers(other) if q.kind == "activation")
    read = {q.tensor: q.results[0] for q in quantizers if q.results}
    pairs = {name: read.get(name, name) for name in measured_tensors(float_model)}
    return {a: b for a, b in pairs.items() if a not in outputs and b in have}


def _saturates(model: ir.Model) -> bool:
    """Whether the int8 kernels of this processor may make a model of its target worse."""
    return _target(model).saturation is not None and saturates_int8()


def _analyze(
    float_model: ir.Model,
    other: ir.Model,
    found: Comparison,
    floats: ir.Model | None,
    effort: float,
) -> TensorAnalysis:
    if floats is None:
        floats = _centered(normalize(float_model, found.samples[0].feed), other)
    return analyze_tensors(
        with_saturated(other),
        floats,
        found.samples,
        found.slices,
        common=_names(float_model),
        effort=effort,
        target=_target(other),
    )


def _open(
    model: ir.Model,
    data: Any,
    labels: str | Sequence[Label] | None,
    preprocessing: Preprocessing | Tokenization | str | None,
    limit: int | None,
) -> tuple[Data, Sequence[Label]]:
    """Return the samples, and the label of each if there are any."""
    if labels == BATCHES:
        labels = []
        data = without_labels(data, labels)
    samples = open_data(
        data,
        model_inputs(model),
        preprocessing=preprocessing,
        limit=limit,
        # Ranges are not made for padding, so its errors say nothing; labels are those of whole batches.
        padding=labels is not None,
    )
    return samples, _labels(labels, samples)


def _labels(labels: str | Sequence[Label] | None, samples: Data) -> Sequence[Label]:
    if labels is None:
        return ()
    if isinstance(labels, str):
        return read_labels(labels, samples)
    count = len(samples)  # labels of batches are known once all are read
    if len(labels) != count:
        raise DataError(f"{len(labels)} labels for {len(samples)} samples; give one for each")
    return labels


def _scorer(labels: Sequence[Label], metric: str | Metric | None) -> Scorer | None:
    if not labels:
        if metric is not None:
            raise ConfigError("a metric is given, but no labels (--labels)")
        return None
    if metric is None:
        return TopScorer()
    return MetricScorer(find_metric(metric) if isinstance(metric, str) else metric)


def examine(
    reference: ModelSource,
    result: Result,
    *,
    budget: Effort = "quick",
    progress: Progress = ignore_progress,
) -> Report:
    """Return the report of a run with all that ``compare`` finds on its verification samples."""
    if result.samples is None:
        return result.report
    found = compare(
        reference,
        result.quantized,
        list(result.samples.verification()),
        budget=budget,
        floats=result.state.adapted,
        progress=progress,
    )
    known = result.report
    return msgspec.structs.replace(
        known,
        outputs=found.outputs,
        slices=found.slices,
        fused=found.fused,
        layers=found.layers or known.layers,
        budget=found.budget,
        tensors=found.tensors,
        network=found.network,
        samples=found.samples,
        notes=(*known.notes, *found.notes),
        seconds={**known.seconds, **found.seconds},
    )


def _analyzed_on(total: int, budget: Effort) -> int:
    return min(total, _MOST if budget == "full" else max(2, min(_MOST, total // _ONE_IN)))


def _effort(total: int, budget: Effort) -> float:
    if budget == "full":
        return math.inf
    return 0.0 if budget == "none" else max(_LEAST_EFFORT, _PER_SAMPLE * total)


def _names(model: ir.Model) -> frozenset[str]:
    return frozenset(str(v.name) for node in model.graph for v in node.outputs if v.name)


def _target(model: ir.Model) -> Target:
    """Return the target a model was made for; any runtime's if it does not say."""
    try:
        return find_target(model.metadata_props.get("lowbit.target", "onnxruntime"))
    except ConfigError:
        return find_target("onnxruntime")


class _Written(msgspec.Struct):
    """The part of the configuration in a quantized model that is read here."""

    rescaling: Rescaling | None = None


def _centered(model: ir.Model, quantized: ir.Model) -> ir.Model:
    """Return a float model with the offsets that the biases of a quantized one have."""
    try:
        stored = quantized.metadata_props.get("lowbit.config", "{}")
        rescaling = msgspec.json.decode(stored, type=_Written).rescaling
    except (msgspec.MsgspecError, ConfigError, RecursionError):  # anybody can write into that field
        return model
    if rescaling is None or not rescaling.offsets:
        return model
    offsets = Rescaling(offsets=rescaling.offsets)
    return implementation_of(offsets).apply(model, offsets, Context()).model


def _quantized_again(
    reference: ir.Model,
    quantized: ir.Model,
    analysis: TensorAnalysis,
    found: Comparison,
    data: Any,
    preprocessing: Preprocessing | Tokenization | str | None,
    progress: Progress,
) -> TensorAnalysis:
    """Return the analysis with what a new run with the promoted tensors gives, on the same samples."""
    budget = analysis.budget
    if budget is None or not budget.tried_together:
        return analysis
    best = budget.tried_together[0]
    result = quantize(
        reference,
        data=data,
        config=_changed(quantized, best.config),
        limit=_CALIBRATED_ON,
        preprocessing=preprocessing,
        progress=progress,
    )
    noise = noise_of(result.quantized, found.samples, found.slices)
    sqnr = decibels(1.0, noise)
    again = msgspec.structs.replace(best, requantized_sqnr_db=sqnr)
    if best is budget.region:
        budget = msgspec.structs.replace(budget, region=again)
    else:
        budget = msgspec.structs.replace(budget, promotion=again)
    return dataclasses.replace(analysis, budget=budget)


def _changed(model: ir.Model, line: str) -> QuantConfig:
    """Return the configuration a model was made with, and what a line changes in it."""
    stored = model.metadata_props.get("lowbit.config")
    if stored is None:
        raise ConfigError(
            "the quantized model does not say how it was made, so it cannot be quantized again; "
            "skip --retry"
        )
    try:
        config = decode_json(stored, QuantConfig)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the quantized model's lowbit.config, which says how it was made, cannot be read ({error}); skip "
            "--retry"
        ) from error
    fields = {**msgspec.to_builtins(config), "tensors": [], "rules": [], "exclude": []}
    change = convert({**fields, **msgspec.json.decode(line)}, QuantConfig)
    return msgspec.structs.replace(
        config,
        tensors=(*config.tensors, *change.tensors),
        rules=(*config.rules, *change.rules),
        exclude=tuple(dict.fromkeys((*config.exclude, *change.exclude))),
        # The float model has them fixed already.
        fix_inputs={},
        input_shapes={},
    )
