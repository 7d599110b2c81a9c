"""The error budget: each tensor's share of the outputs' error, within a bounded effort.

The sensitivity of a few tensors, spread over the graph, is measured on one sample. They tell how much
of a tensor's own error reaches the outputs from where it is, and so what every other one should add.
The likeliest are measured too; the worst of all on more samples, quantized alone and alone in float;
and fixes for them are tried. Effort is counted in plain passes, not in seconds, so that the same data
gives the same budget.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from lowbit.analyze import causes, suggestions
from lowbit.analyze.observations import Observation
from lowbit.analyze.quantizers import Constant, Quantizer
from lowbit.analyze.sensitivity import Switch, Variant, VariantRunner
from lowbit.numerics.metrics import decibels
from lowbit.report.values import Budget, BudgetRow, Cause, SuggestedFix
from lowbit.targets import Target

_ON, _OFF = np.array(True), np.array(False)
_PASS = 0.8
"""The cost of a run of the switched model, relative to a float and a quantized pass together."""

_PROBES, _FEWEST = 7, 12
"""Tensors of each kind to gauge estimates by; further ones to measure, whatever it costs."""

_AGAIN, _IN_FLOAT, _FIXED = 10, 6, 5
"""Of the worst tensors, how many are measured on every sample, left in float, and given fixes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """All that is known of one quantized tensor before anything is tried."""

    quantizer: Quantizer
    switch: Switch
    seen: Observation | None
    weight: Constant | None
    bias: Constant | None
    shared: causes.SharedScale | None

    @property
    def own_noise(self) -> float:
        """Its own noise, as a share of its own signal."""
        if self.weight is not None and self.weight.float_value is not None:
            plain = self.weight.float_value.astype(np.float64)
            power = float(np.sum(plain * plain))
            noise = float(np.sum(np.square(plain - self.weight.quantized)))
            return noise / power if power else 0.0
        return self.seen.own_noise if self.seen is not None else 0.0


def make_budget(
    runner: VariantRunner, subjects: Sequence[Subject], samples: int, effort: float, target: Target
) -> Budget:
    """Return the budget; ``effort`` is how many pairs of plain passes may measure sensitivities."""
    measured = _measure_sensitivities(runner, subjects, samples, effort)
    everything = math.isinf(effort)
    worst = sorted(measured.exact, key=lambda name: -measured.exact[name])
    worst = worst if everything else worst[:_IN_FLOAT]
    by_name = {s.quantizer.tensor: s for s in subjects}
    in_float = _measure(runner, [by_name[name] for name in worst], samples, "quantized")
    now = runner.noise_of("quantized", samples)
    rows = [_row(s, measured, in_float.get(s.quantizer.tensor), samples, now) for s in subjects]
    rows.sort(key=lambda row: (-min(row.samples, 1), -row.sensitivity))
    return Budget(
        sqnr_db=_as_decibels(now),
        samples=samples,
        measured=len(measured.quick),
        estimated=len(subjects) - len(measured.quick),
        float_sqnr_db=_as_decibels(runner.noise_of("float", samples)),
        rows=tuple(_with_fixes(runner, rows, by_name, in_float, samples, target, now)),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Sensitivities:
    """The outputs' noise with one tensor quantized alone.

    Expected of every tensor, measured on one sample of many, and on all samples of the worst.
    """

    expected: Mapping[str, float]
    quick: Mapping[str, float]
    exact: Mapping[str, float]

    def of(self, name: str) -> float:
        """Return the best that is known of a tensor."""
        return self.exact.get(name, self.quick.get(name, self.expected[name]))


def _measure_sensitivities(
    runner: VariantRunner, subjects: Sequence[Subject], samples: int, effort: float
) -> _Sensitivities:
    quick = _measure(runner, _probes(subjects), 1, "float")
    expected = _expected(subjects, quick)
    rest = [s for s in subjects if s.quantizer.tensor not in quick]
    likely = sorted(rest, key=lambda s: -expected[s.quantizer.tensor])
    quick |= _measure(runner, _affordable(runner, likely, effort), 1, "float")
    ranked = sorted(
        (s for s in subjects if s.quantizer.tensor in quick),
        key=lambda s: -quick[s.quantizer.tensor],
    )
    worst = ranked if math.isinf(effort) else ranked[:_AGAIN]
    return _Sensitivities(expected, quick, _measure(runner, worst, samples, "float"))


def _row(
    subject: Subject, measured: _Sensitivities, in_float: float | None, samples: int, now: float
) -> BudgetRow:
    name = subject.quantizer.tensor
    return BudgetRow(
        tensor=name,
        kind=subject.quantizer.kind,
        op_type=subject.quantizer.op_type,
        node=subject.quantizer.consumer if subject.quantizer.kind == "weight" else "",
        format=subject.quantizer.format,
        own_sqnr_db=_as_decibels(subject.own_noise),
        sensitivity=measured.of(name) / now if now else 0.0,
        recovered=1 - in_float / now if in_float is not None and now else None,
        samples=samples if name in measured.exact else int(name in measured.quick),
        causes=find_causes(subject) if in_float is not None else (),
    )


def _as_decibels(noise: float) -> float:
    """Return noise, as a share of the signal, as an SQNR; not a number where there is no signal."""
    return math.nan if math.isnan(noise) else decibels(1.0, noise)


def _probes(subjects: Sequence[Subject]) -> list[Subject]:
    """Return some tensors of each kind, evenly spaced over the graph."""
    found = []
    for kind in ("activation", "weight"):
        same = [s for s in subjects if s.quantizer.kind == kind and s.own_noise > 0]
        spaced = np.linspace(0, len(same) - 1, min(_PROBES, len(same))).round().astype(int)
        found += [same[index] for index in spaced]
    return found


def _expected(subjects: Sequence[Subject], measured: Mapping[str, float]) -> dict[str, float]:
    """Return what each tensor should add to the outputs' noise.

    How much of its own noise reaches them is taken from measured tensors before and after it.
    """
    expected: dict[str, float] = {}
    for kind in ("activation", "weight"):
        same = [s for s in subjects if s.quantizer.kind == kind]
        known = [s for s in same if measured.get(s.quantizer.tensor, 0) > 0]
        nodes = [s.switch.first_node for s in known]
        gains = [np.log(measured[s.quantizer.tensor] / s.own_noise) for s in known]
        for subject in same:
            gain = np.interp(subject.switch.first_node, nodes, gains) if known else 0.0
            expected[subject.quantizer.tensor] = subject.own_noise * float(np.exp(gain))
    return expected


def find_causes(subject: Subject) -> tuple[Cause, ...]:
    """Return the causes of a tensor's error."""
    quantizer = subject.quantizer
    if subject.weight is not None:
        return causes.weight_causes(quantizer, subject.weight, subject.bias, quantizer.channel_axis)
    if subject.seen is None:
        return ()
    return causes.activation_causes(quantizer, subject.seen, subject.shared)


def _affordable(runner: VariantRunner, ranked: Sequence[Subject], effort: float) -> list[Subject]:
    """Return the first subjects whose runs stay within the effort."""
    chosen: list[Subject] = []
    for subject in ranked:
        effort -= _PASS * runner.share(subject.switch.first_node)
        if effort < 0 and len(chosen) >= _FEWEST:
            break
        chosen.append(subject)
    return chosen


def _measure(
    runner: VariantRunner, subjects: Sequence[Subject], samples: int, base: str
) -> dict[str, float]:
    """Return the outputs' noise with one tensor quantized alone, or alone in float."""
    alone = base == "float"
    variants = [
        Variant(
            "float" if alone else "quantized",
            {subject.switch.name: _ON if alone else _OFF},
            subject.switch.first_node,
        )
        for subject in subjects
    ]
    # The error left with everything in float belongs to no tensor: it comes from rescaled weights and
    # from arithmetic of the target.
    rest = runner.noise_of("float", samples) if alone else 0.0
    found = runner.noise(variants, samples)
    return {
        s.quantizer.tensor: max(0.0, noise - rest) for s, noise in zip(subjects, found, strict=True)
    }


def _with_fixes(
    runner: VariantRunner,
    rows: Sequence[BudgetRow],
    subjects: Mapping[str, Subject],
    in_float: Mapping[str, float],
    samples: int,
    target: Target,
    now: float,
) -> list[BudgetRow]:
    """Return the rows, the worst of them with what was tried on them."""
    done = []
    for index, row in enumerate(rows):
        if row.tensor not in in_float or index >= _FIXED:
            done.append(row)
            continue
        subject = subjects[row.tensor]
        trials = _trials(subject, row.causes, target)
        variants = [Variant("quantized", t.changes, subject.switch.first_node) for t in trials]
        # The tensor in float has been tried already.
        new = [v for v in variants if len(v.changes) > 1 or subject.switch.name not in v.changes]
        noises = iter(runner.noise(new, samples))
        tried = []
        for trial, variant in zip(trials, variants, strict=True):
            after = _as_decibels(next(noises) if variant in new else in_float[row.tensor])
            gain = after - _as_decibels(now)
            tried.append(
                SuggestedFix(what=trial.what, config=trial.config, sqnr_db=after, gain_db=gain)
            )
        tried.sort(key=lambda fix: -fix.gain_db)
        done.append(msgspec.structs.replace(row, suggested_fixes=tuple(tried)))
    return done


def _trials(subject: Subject, found: Sequence[Cause], target: Target) -> list[suggestions.Trial]:
    quantizer, switch = subject.quantizer, subject.switch
    if subject.weight is not None:
        return suggestions.weight_trials(quantizer, subject.weight, switch, target)
    if subject.seen is None:
        return []
    return suggestions.activation_trials(quantizer, found, subject.seen, switch, target)
