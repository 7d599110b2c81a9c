"""Try the steps that help most models and harm some, and keep each only if it helps this one.

Part of the calibration samples is held out. The model is built without any of the steps, then with
one more at a time; a step stays if the outputs come nearer to the float model's on the held-out
samples, by more than the standard error of the difference. Steps that follow from far more samples stay
unless the outputs are worse beyond chance. If the model is refined later, the error is that
expected afterwards. Models that are only compared are calibrated on some of the samples; the others are added
to the statistics of the one that is kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.scale_search import Centering, PowerOfTwoFit, SensitivityWeighting
from lowbit.config.transforms import FloatTransform
from lowbit.data.shards import Selection
from lowbit.evaluate.validation import Gain, Validation
from lowbit.graph.sharing import sharing_of
from lowbit.numerics.formats import DoubleArray
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Pipeline
from lowbit.pipeline.verify import quantized_names
from lowbit.planning.plan import Plan
from lowbit.report.values import Step
from lowbit.search.centering import centered
from lowbit.search.expected_error import ExpectedError
from lowbit.search.power_of_two_fit import rescaled
from lowbit.search.sensitive_scales import weighted_scales
from lowbit.state import Normalized, Quantized, extended
from lowbit.transforms import implementation_of

_COMPARED, _LARGE_COMPARED = 16, 8
"""Samples that calibrate models to be compared, where there are at least twice as many; large ones."""

_Field = Literal[
    "bias_correction",
    "equalization",
    "smooth_quant",
    "sensitivity",
    "power_of_two_fit",
    "centering",
]


@dataclasses.dataclass(frozen=True, slots=True)
class _Option:
    """A field of the configuration, and its value when the step is skipped.

    ``unless_worse``: the step follows from far more samples than those held out; it is dropped only if the
    held-out samples show that it is worse.
    """

    name: str
    field: _Field
    skipped: object
    unless_worse: bool = False


_OPTIONS = (
    _Option("bias correction", "bias_correction", skipped=False, unless_worse=True),
    _Option("equalization", "equalization", skipped=None),
    _Option("SmoothQuant", "smooth_quant", skipped=None),
    _Option("scales by sensitivity", "sensitivity", skipped=None, unless_worse=True),
    _Option("power-of-two fit", "power_of_two_fit", skipped=None, unless_worse=True),
    _Option("centering", "centering", skipped=None),
)


def has_optional_steps(config: QuantConfig) -> bool:
    """Whether a configuration has steps that are kept only if they help."""
    return bool(_optional(config))


def _optional(config: QuantConfig) -> list[_Option]:
    if not config.keep_only_if_better:
        return []
    found = [option for option in _OPTIONS if getattr(config, option.field) != option.skipped]
    return [o for o in found if getattr(getattr(config, o.field), "is_optional", True)]


def as_collected(config: QuantConfig, stats: Stats) -> QuantConfig:
    """Return the configuration with the choice that statistics kept from another run embody."""
    if config.keep_only_if_better and not stats.equalized:
        config = msgspec.structs.replace(config, equalization=None)
    if config.keep_only_if_better and not stats.smoothed:
        config = msgspec.structs.replace(config, smooth_quant=None)
    if not any(tensor.sensitivity is not None for tensor in stats.tensors.values()):
        config = msgspec.structs.replace(config, sensitivity=None)
    return msgspec.structs.replace(config, rescaling=stats.rescaling)


def keep_what_helps(
    pipeline: Pipeline, state: Normalized, plan: Plan | None
) -> tuple[Quantized, tuple[Step, ...]]:
    """Return the model with the steps that help, and what was tried."""
    samples, config, clock = state.samples, state.config, pipeline.clock
    if samples is None:
        raise ValueError("steps can be measured on samples only")
    tried = _optional(config)
    plain = stages.with_config(state, **{option.field: option.skipped for option in tried})
    fitting = samples.fitting()
    compared = _compared(fitting, plain, [getattr(config, option.field) for option in tried])
    best = pipeline.build(plain, lambda: compared, plan=plan)
    with clock.stage("validate"):
        validation = Validation(state.loaded, samples.validation())
        before = ExpectedError(validation, best)
        is_measured = len(before.sqnr(*validation.looks[:1])) > 0
    if not is_measured:  # no output is a float: there is nothing to measure
        return pipeline.build(state, samples.calibration, plan=plan), ()
    steps = []
    weighted: Quantized | None = None
    for option in tried:
        wanted = getattr(config, option.field)
        if isinstance(wanted, FloatTransform) and not _applies(wanted, best):
            continue
        if isinstance(wanted, SensitivityWeighting):
            weighted = found = weighted_scales(pipeline, best, wanted, before.of_outputs)
        elif isinstance(wanted, PowerOfTwoFit):
            # Factors are chosen by sensitivity also where that chose no better scales by itself.
            found = rescaled(pipeline, weighted or best, compared) if plan is None else None
        elif isinstance(wanted, Centering):
            found = centered(pipeline, best, compared) if plan is None else None
        else:
            found = _with_step(pipeline, best, option.field, wanted, compared, plan)
        if found is None:
            continue
        candidate = found
        # Corrected biases change nothing of what the model would give with weights in float.
        known = before if option.field == "bias_correction" else None
        with clock.stage("validate"):
            after = ExpectedError(validation, candidate, known)
            step = compared_step(
                option.name, validation, before, after, unless_worse=option.unless_worse
            )
        if config.steps_decided:
            step = msgspec.structs.replace(step, kept=True)
        steps.append(step)
        if step.kept:
            best, before = candidate, after
    if len(compared) < len(fitting):
        best = _from_all(pipeline, best, fitting, compared, plan)
    decided = msgspec.structs.replace(best.config, steps_decided=True)
    return extended(best, Quantized, config=decided), tuple(steps)


def with_every_step(pipeline: Pipeline, state: Quantized, plan: Plan | None) -> Quantized:
    """Return a model with the steps that follow its statistics, where nobody asks whether they help."""
    samples, config = state.samples, state.config
    if samples is None:
        return state
    if config.sensitivity is not None:
        seen = Validation(state.loaded, samples.calibration().spread(1))
        (found,) = seen.ratios([state.emitted.model], quantized_names(state))
        state = weighted_scales(pipeline, state, config.sensitivity, found.of_outputs) or state
    if config.power_of_two_fit is not None and plan is None:
        state = rescaled(pipeline, state, samples.calibration()) or state
    if config.centering is not None and plan is None:
        state = centered(pipeline, state, samples.calibration()) or state
    return state


def _compared(samples: Selection, state: Normalized, steps: Sequence[object]) -> Selection:
    """Return the samples that candidates are calibrated on: all of them if there is only one candidate."""
    model = state.normalized
    several = any(
        implementation_of(step).applies(model, step)
        for step in steps
        if isinstance(step, FloatTransform)
    )
    if not several:
        return samples
    large = sharing_of(next(iter(samples), None), model).one_by_one
    count = _LARGE_COMPARED if large else _COMPARED
    return samples.spread(count) if len(samples) >= 2 * count else samples


def _from_all(
    pipeline: Pipeline,
    state: Quantized,
    samples: Selection,
    seen: Selection,
    plan: Plan | None,
) -> Quantized:
    """Return a model from all samples, some of which have been seen."""
    if not state.stats.adds_up:
        return pipeline.build(state, lambda: samples, plan=plan)
    more = pipeline.calibrated(state, lambda: samples.without(seen))
    return pipeline.finish(stages.with_stats(state, state.stats | more.stats))


def _applies(transform: FloatTransform, state: Quantized) -> bool:
    """Whether a transform would change this model at all; if not, nothing is calibrated for it."""
    return implementation_of(transform).applies(state.float_model, transform)


def _with_step(
    pipeline: Pipeline,
    state: Quantized,
    field: _Field,
    wanted: object,
    samples: Selection,
    plan: Plan | None,
) -> Quantized:
    """Return the state with one step more; no more is computed again than depends on it."""
    changed = stages.with_config(state, **{field: wanted})
    if field != "bias_correction":  # other activations, so other statistics
        return pipeline.build(changed, lambda: samples, plan=plan)
    with pipeline.clock.stage("solve"):
        solved = stages.correct_biases(extended(state, Quantized, config=changed.config))
    return pipeline.emitted(solved)


def compared_step(
    name: str,
    validation: Validation,
    before: ExpectedError,
    after: ExpectedError,
    *,
    unless_worse: bool = False,
) -> Step:
    """Return whether a step is kept, measured on as many samples as leave no doubt about it."""
    for count in (*validation.looks, len(validation)):
        pair = before.sqnr(count), after.sqnr(count)
        if Gain.of(*pair).is_decided(len(validation), unless_worse=unless_worse):
            break
    return step_of(name, *pair, unless_worse=unless_worse)


def step_of(
    name: str, before: DoubleArray, after: DoubleArray, *, unless_worse: bool = False
) -> Step:
    """Return whether a step is kept, by the SQNR of samples before and after it.

    ``unless_worse``: it is kept unless it is worse, rather than only if it is better.
    """
    gain = Gain.of(before, after)
    return Step(
        name=name,
        before=_relative_error(before),
        after=_relative_error(after),
        kept=gain.is_not_worse if unless_worse else gain.is_better,
        note=gain.describe(),
    )


def _relative_error(decibels: DoubleArray) -> float:
    """Return the geometric mean of noise over signal."""
    return float(10 ** (-np.mean(decibels) / 10)) if len(decibels) else math.nan
