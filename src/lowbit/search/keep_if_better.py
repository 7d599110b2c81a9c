"""Steps that help most models and harm some: each is kept only if it helps this one.

Part of the calibration samples is held back. The model is built without any of the steps, then
with one more at a time; a step stays if the outputs come nearer to the float model's on the samples
held back, by more than the difference varies from sample to sample. What was judged is what is
kept: built again from all samples, a power-of-two scale may fall the other way.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import msgspec
import numpy as np

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.transforms import QuarkCle, QuarkSmoothQuant
from lowbit.evaluate.judge import Decibels, Judge
from lowbit.pipeline.building import Builder, Built, emit
from lowbit.planning import Plan
from lowbit.report.values import Step
from lowbit.transforms import can_equalize, can_smooth

_Field = Literal["bias_correction", "equalization", "smooth_quant"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Option:
    """A field of the configuration that can be left out."""

    name: str
    field: _Field
    without: object


_OPTIONS = (
    _Option("bias correction", "bias_correction", without=False),
    _Option("equalization", "equalization", without=None),
    _Option("smoothing", "smooth_quant", without=None),
)


def options(config: QuantConfig) -> list[_Option]:
    """Return the steps of a configuration that can be judged."""
    if not config.keep_only_if_better:
        return []
    found = [option for option in _OPTIONS if getattr(config, option.field) != option.without]
    # Another's equalization or smoothing than our own is there to be had as it is.
    others = (QuarkCle, QuarkSmoothQuant)
    return [option for option in found if not isinstance(getattr(config, option.field), others)]


def as_collected(config: QuantConfig, stats: Stats) -> QuantConfig:
    """Return the configuration with the choice that statistics kept from another run embody."""
    if config.keep_only_if_better and not stats.equalized:
        config = msgspec.structs.replace(config, equalization=None)
    if config.keep_only_if_better and not stats.smoothed:
        config = msgspec.structs.replace(config, smooth_quant=None)
    return config


def choose(
    builder: Builder, config: QuantConfig, plan: Plan | None
) -> tuple[Built, tuple[Step, ...]]:
    """Return the best way to build the model, and what was tried."""
    samples, tried = builder.samples, options(config)
    plain = _with(config, {option.field: option.without for option in tried})
    best = builder.build(plain, samples.fitting, plan=plan)
    steps = []
    with builder.clock.charge("choose"):
        judge = Judge(builder.loaded, samples.judging())
        before = judge.decibels(emit(best))
        if not len(before):  # no output is a float: there is nothing to judge by
            return builder.build(config, samples.calibration, plan=plan), ()
        for option in tried:
            wanted = getattr(config, option.field)
            if not _applies(option.field, wanted, best):
                continue
            candidate = _rebuilt(builder, best, {option.field: wanted}, plan)
            after = judge.decibels(emit(candidate))
            step = _judged(option.name, before, after)
            steps.append(step)
            if step.kept:
                best, before = candidate, after
    return best, tuple(steps)


def _applies(field: _Field, wanted: Any, built: Built) -> bool:
    """Whether a step would change this model at all; if not, nothing is calibrated for it."""
    model = built.ready.equalized.model
    match field:
        case "equalization":
            return can_equalize(model, wanted)
        case "smooth_quant":
            return can_smooth(model, wanted)
    return True


def _with(config: QuantConfig, changes: dict[_Field, object]) -> QuantConfig:
    return msgspec.structs.replace(config, **changes)


def _rebuilt(
    builder: Builder, built: Built, changes: dict[_Field, object], plan: Plan | None
) -> Built:
    config = _with(built.config, changes)
    if (
        "equalization" in changes or "smooth_quant" in changes
    ):  # other activations, so other statistics
        return builder.build(config, builder.samples.fitting, plan=plan)
    return builder.solve(config, built.ready, built.plan, built.stats)


def _judged(name: str, before: Decibels, after: Decibels) -> Step:
    """Say whether the ratio rises by more than its rise varies between samples."""
    gain = after - before
    doubt = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    mean = float(gain.mean()) if len(gain) else 0.0
    kept = mean > doubt
    word = f"{mean:+.2f} dB, give or take {doubt:.2f}, on {len(gain)} samples"
    return Step(
        name=name,
        before=_relative_error(before),
        after=_relative_error(after),
        kept=kept,
        note=word,
    )


def _relative_error(decibels: Decibels) -> float:
    """Return the geometric mean of noise over signal."""
    return float(10 ** (-np.mean(decibels) / 10)) if len(decibels) else math.nan
