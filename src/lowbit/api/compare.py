"""Everything there is to say about a quantized model beside its float model."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.analyze.quantizers import find_quantizers, is_tuned
from lowbit.analyze.sensitivity import Example
from lowbit.analyze.tensors import Closer, look_closer
from lowbit.api.quantize import Result, quantize
from lowbit.config.config import QuantConfig
from lowbit.data import Data, Preprocessing, open_data
from lowbit.errors import ConfigError, DataError
from lowbit.evaluate.accuracy import Metric, MetricScorer, Scorer, TopScorer, find_metric
from lowbit.evaluate.compare_models import of_outputs
from lowbit.evaluate.labels import Label, read_labels
from lowbit.evaluate.latency import measure_latency, saturates_int8
from lowbit.evaluate.outputs import Distance, Part, decibels
from lowbit.evaluate.passes import Outputs, Passes, run_passes
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize
from lowbit.pipeline.preparing import ModelSource, model_inputs
from lowbit.pipeline.verifying import constants_size
from lowbit.report.values import Latency, Report, Together, scores
from lowbit.targets import Target, find_target
from lowbit.version import __version__

_CALIBRATED_ON = 64

Effort = Literal["none", "quick", "full"]
Progress = Callable[[str, int, int | None], None]

_MOST, _ONE_IN = 8, 10
"""Samples to look at closely: one in ten, at most eight."""

_FUSED = 16
_PER_SAMPLE, _LEAST_EFFORT = 0.4, 3.0
"""Pairs of plain passes that measuring every tensor alone may take."""

_GAP_DB = 1.0


def compare(
    reference: ModelSource,
    quantized: ModelSource,
    data: Any,
    *,
    limit: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    budget: Effort = "quick",
    labels: str | Sequence[Label] | None = None,
    metric: str | Metric | None = None,
    tolerance: float = 1.0,
    timed: bool = False,
    calibration: Any = None,
    floats: ir.Model | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Report:
    """Measure how far a quantized model is from its float reference, on the given data.

    Args:
        reference: The float model.
        quantized: The quantized model.
        data: As for ``lowbit.quantize``.
        limit: How many samples to compare on; all of them if not given.
        preprocessing: How images become inputs.
        budget: How much to find out about single tensors: ``quick`` within a few passes over the
            data, ``full`` every tensor on eight samples, ``none`` nothing.
        labels: A label for each sample, or where they are (``lowbit.evaluate.labels``): top-1 and
            top-5 accuracy are measured as well.
        metric: ``metric(outputs, label)`` or its ``module:function``, instead of top-1.
        tolerance: For how wide a gap of accuracy the number of samples needed is told.
        timed: Measure how long both models take here.
        calibration: Data to quantize again on, with the worst tensors at 16 bits.
        floats: The model that was quantized, where its weights are no longer the reference's own.
        progress: Called with stage, done and total.
    """
    float_model, other = io.load(reference), io.load(quantized)
    samples = open_data(data, model_inputs(float_model), preprocessing=preprocessing, limit=limit)
    start = time.perf_counter()
    names = list(of_outputs(float_model, other).pairs)
    total, threads = len(samples), os.cpu_count() or 1
    is_quantized = bool(find_quantizers(other))
    known = _labels(labels, samples)
    scorer = _scorer(known, metric)
    done = 0

    def told(*runs: Outputs | None) -> None:
        nonlocal done
        if scorer is not None:
            scorer.add(runs, known[done])
        progress("compare", done := done + 1, total)

    passes = run_passes(
        float_model,
        other,
        names,
        samples,
        fused=_spread(total, total if scorer else _FUSED) if is_quantized else frozenset(),
        keep=_spread(total, _looked_at(total, budget)),
        threads=threads,
        told=told,
    )
    seconds = {"compare": time.perf_counter() - start}
    closer = None
    if is_quantized and passes.examples and passes.parts:
        start = time.perf_counter()
        progress("look closer", 0, None)
        closer = look_closer(
            other,
            floats if floats is not None else normalize(float_model, passes.examples[0].feed),
            passes.examples,
            passes.parts,
            common=_names(float_model),
            effort=_effort(total, budget),
            target=_target(other),
            threads=threads,
        )
        seconds["look closer"] = time.perf_counter() - start
        if calibration is not None and closer.budget is not None and closer.budget.together:
            start = time.perf_counter()
            new = retry(
                float_model,
                other,
                closer.budget.together,
                calibration,
                preprocessing,
                passes.examples,
                passes.parts,
                progress,
            )
            better = msgspec.structs.replace(closer.budget, together=new)
            closer = dataclasses.replace(closer, budget=better)
            seconds["quantize again"] = time.perf_counter() - start
    report = _report(float_model, other, samples.description, passes, closer, seconds)
    return msgspec.structs.replace(
        report,
        accuracy=scorer.figures(tolerance) if scorer is not None else (),
        latency=_latency(float_model, other, passes, progress) if timed else None,
    )


def _labels(labels: str | Sequence[Label] | None, samples: Data) -> Sequence[Label]:
    if labels is None:
        return ()
    if isinstance(labels, str):
        return read_labels(labels, samples)
    if len(labels) != len(samples):
        raise DataError(f"{len(labels)} labels for {len(samples)} samples; give one for each")
    return labels


def _scorer(labels: Sequence[Label], metric: str | Metric | None) -> Scorer | None:
    if not labels:
        if metric is not None:
            raise ConfigError("a metric is given, but no labels for it to read")
        return None
    if metric is None:
        return TopScorer()
    return MetricScorer(find_metric(metric) if isinstance(metric, str) else metric)


def _latency(
    reference: ir.Model, quantized: ir.Model, passes: Passes, progress: Progress
) -> Latency | None:
    if not passes.examples:
        return None
    progress("time", 0, None)
    return measure_latency(reference, quantized, passes.examples[0].feed)


def examine(
    reference: ModelSource,
    result: Result,
    *,
    budget: Effort = "quick",
    progress: Progress = lambda stage, done, total: None,
) -> Report:
    """Return the report of a run with all that ``compare`` finds on its verification samples."""
    samples = list(result.samples.verification())
    found = compare(
        reference, result.quantized, samples, budget=budget, floats=result.floats, progress=progress
    )
    known = result.report
    return msgspec.structs.replace(
        known,
        outputs=found.outputs,
        parts=found.parts,
        fused=found.fused,
        layers=found.layers or known.layers,
        budget=found.budget,
        tensors=found.tensors,
        notes=(*known.notes, *found.notes),
        seconds={**known.seconds, **found.seconds},
    )


def _report(
    float_model: ir.Model,
    other: ir.Model,
    description: str,
    passes: Passes,
    closer: Closer | None,
    seconds: dict[str, float],
) -> Report:
    return Report(
        preset=other.metadata_props.get("lowbit.preset", "unknown"),
        target=other.metadata_props.get("lowbit.target", "unknown"),
        version=__version__,
        data=description,
        calibration_samples=0,
        verification_samples=passes.count,
        held_out=True,
        outputs=scores(dict(passes.outputs)),
        parts=scores(dict(passes.parted)),
        fused=scores(dict(passes.fused)),
        layers=scores(dict(closer.layers)) if closer else (),
        budget=closer.budget if closer else None,
        tensors=closer.views if closer else (),
        notes=(*_notes(passes), *(closer.notes if closer else ()), *_tuned(other, closer)),
        size_before=constants_size(float_model),
        size_after=constants_size(other),
        seconds=seconds,
    )


def _notes(passes: Passes) -> tuple[str, ...]:
    mixed = dict.fromkeys(p.output for p in passes.parts if p.axis is not None)
    notes = [
        f"output {name} mixes values of unlike size; its ratio is that of the largest: look at "
        "its parts"
        for name in mixed
    ]
    gap = max((passes.exact[n].sqnr_db - f.sqnr_db for n, f in passes.fused.items()), default=0.0)
    if passes.fused and math.isfinite(gap) and gap > _GAP_DB:
        why = (
            "this processor's int8 kernels saturate in 16 bits: figures taken through them "
            "understate the model, and so would a deployment on it"
            if saturates_int8()
            else "onnxruntime's fused kernels compute something else than the model says"
        )
        notes.append(f"through fused kernels the outputs are {gap:.1f} dB worse; {why}")
    elif passes.fused and saturates_int8():
        notes.append(
            "this processor's int8 kernels saturate in 16 bits; on this model and data it does "
            "not show"
        )
    return tuple(notes)


def _tuned(model: ir.Model, closer: Closer | None) -> tuple[str, ...]:
    """Say what a budget cannot show: weights tuned for the very quantizers that it switches off."""
    if closer is None or closer.budget is None or not is_tuned(model):
        return ()
    note = (
        "the weights of this model were tuned for its quantizers, so leaving one out gains less "
        "than it would in a new run (--retry CALIBRATION_DATA)"
    )
    return (note,)


def _looked_at(total: int, budget: Effort) -> int:
    return min(total, _MOST if budget == "full" else max(2, min(_MOST, total // _ONE_IN)))


def _spread(total: int, count: int) -> frozenset[int]:
    """Return the numbers of some samples, evenly spaced."""
    if count >= total:
        return frozenset(range(total))
    return frozenset(int(i) for i in np.linspace(0, total - 1, count + 2)[1:-1].round())


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


def retry(
    reference: ir.Model,
    quantized: ir.Model,
    together: Together,
    data: Any,
    preprocessing: Preprocessing | str | None,
    examples: Sequence[Example],
    parts: Sequence[Part],
    progress: Progress,
) -> Together:
    """Return ``together`` with what a new run on calibration data gives, on the same samples."""
    config = _changed(quantized, together.config)
    result = quantize(
        reference,
        data=data,
        config=config,
        limit=_CALIBRATED_ON,
        preprocessing=preprocessing,
        progress=progress,
    )
    names = list(dict.fromkeys(part.output for part in parts))
    distance = Distance(parts)
    with session(result.quantized, name="the model quantized again") as running:
        for example in examples:
            got = dict(zip(names, running.run(names, example.feed), strict=True))
            distance.add(example.want, got)
    return msgspec.structs.replace(together, retried_sqnr_db=decibels(distance.noise))


def _changed(model: ir.Model, line: str) -> QuantConfig:
    """Return the configuration a model was made with, and what a line changes in it."""
    stored = model.metadata_props.get("lowbit.config")
    if stored is None:
        raise ConfigError(
            "the quantized model does not say how it was made, so it cannot be made again; "
            "leave out --retry"
        )
    config = msgspec.json.decode(stored, type=QuantConfig)
    change = msgspec.convert(
        {**msgspec.to_builtins(config), **msgspec.json.decode(line)}, QuantConfig
    )
    return msgspec.structs.replace(
        change,
        tensors=(*config.tensors, *change.tensors),
        exclude=tuple(dict.fromkeys((*config.exclude, *change.exclude))),
    )
