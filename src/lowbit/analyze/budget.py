"""How the error of the outputs divides among the quantized tensors, within a bounded effort.

A few tensors, spread over the graph, are measured alone on one sample. They tell how much of a
tensor's own error reaches the outputs from where it is, and so what every other one should add. The
likeliest are measured too; the worst of all on more samples, alone and left out; and what may
mend them is tried. Effort is counted in plain passes, not in seconds, so that the same data gives
the same budget.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from lowbit.analyze import causes, suggestions
from lowbit.analyze.constants import Constant
from lowbit.analyze.observations import Observation
from lowbit.analyze.quantizers import Quantizer
from lowbit.analyze.sensitivity import Harness, Variant
from lowbit.analyze.switches import Knobs
from lowbit.evaluate.outputs import decibels
from lowbit.report.values import Budget, BudgetRow, Cause, SuggestedFix
from lowbit.targets import Target

_ON, _OFF = np.array(True), np.array(False)
_PASS = 0.8
"""A run of the switched model costs about so much of a float and a quantized pass together."""

_PROBES, _FEWEST = 7, 12
"""Tensors of each kind to gauge estimates by; further ones to measure, whatever it costs."""

_AGAIN, _LEFT_OUT, _MENDED = 10, 6, 5
"""Of the worst tensors, how many are measured on every sample, left out, and with_suggested_fixes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """All that is known of one quantized tensor before anything is tried."""

    quantizer: Quantizer
    knobs: Knobs
    seen: Observation | None
    weight: Constant | None
    bias: Constant | None
    join: causes.Join | None

    @property
    def own_noise(self) -> float:
        """Its own noise, as a share of its own signal."""
        if self.weight is not None and self.weight.plain is not None:
            plain = self.weight.plain.astype(np.float64)
            power = float(np.sum(plain * plain))
            noise = float(np.sum(np.square(plain - self.weight.quantized)))
            return noise / power if power else 0.0
        return self.seen.own_noise if self.seen is not None else 0.0


def make_budget(
    harness: Harness, subjects: Sequence[Subject], samples: int, effort: float, target: Target
) -> Budget:
    """Return the budget; ``effort`` is how many pairs of plain passes may measure tensors alone."""
    probes = _probes(subjects)
    alone = _measure(harness, probes, 1, "float")
    expected = _expected(subjects, alone)
    rest = [s for s in subjects if s.quantizer.tensor not in alone]
    likely = sorted(rest, key=lambda s: -expected[s.quantizer.tensor])
    alone |= _measure(harness, _affordable(harness, likely, effort), 1, "float")
    measured = [s for s in subjects if s.quantizer.tensor in alone]
    ranked = sorted(measured, key=lambda s: -alone[s.quantizer.tensor])
    everything = math.isinf(effort)
    worst = ranked if everything else ranked[:_AGAIN]
    again = _measure(harness, worst, samples, "float")
    closer = sorted(worst, key=lambda s: -again[s.quantizer.tensor])
    closer = closer if everything else closer[:_LEFT_OUT]
    kept = _measure(harness, closer, samples, "quantized")
    now = harness.noise_of("quantized", samples)
    rows = []
    for subject in subjects:
        name = subject.quantizer.tensor
        found = find_causes(subject) if name in kept else ()
        rows.append(
            BudgetRow(
                tensor=name,
                kind=subject.quantizer.kind,
                op_type=subject.quantizer.op_type,
                format=subject.quantizer.format,
                own_sqnr_db=decibels(subject.own_noise),
                alone=_share(again.get(name, alone.get(name, expected[name])), now),
                kept=1 - kept[name] / now if name in kept and now else None,
                samples=samples if name in again else int(name in alone),
                causes=found,
            )
        )
    rows.sort(key=lambda row: (-min(row.samples, 1), -row.alone))
    by_name = {s.quantizer.tensor: s for s in closer}
    with_suggested_fixes = _with_suggested_fixes(harness, rows, by_name, kept, samples, target, now)
    return Budget(
        sqnr_db=decibels(now),
        samples=samples,
        measured=len(alone),
        estimated=len(subjects) - len(alone),
        float_sqnr_db=decibels(harness.noise_of("float", samples)),
        rows=tuple(with_suggested_fixes),
    )


def _probes(subjects: Sequence[Subject]) -> list[Subject]:
    """Return some tensors of each kind, evenly spaced over the graph."""
    found = []
    for kind in ("activation", "weight"):
        same = [s for s in subjects if s.quantizer.kind == kind and s.own_noise > 0]
        places = np.linspace(0, len(same) - 1, min(_PROBES, len(same))).round().astype(int)
        found += [same[place] for place in places]
    return found


def _expected(subjects: Sequence[Subject], alone: Mapping[str, float]) -> dict[str, float]:
    """Return what each tensor should add to the outputs' noise.

    How much of its own noise reaches them is taken from measured tensors before and after it.
    """
    expected: dict[str, float] = {}
    for kind in ("activation", "weight"):
        same = [s for s in subjects if s.quantizer.kind == kind]
        known = [s for s in same if alone.get(s.quantizer.tensor, 0) > 0]
        places = [s.knobs.place for s in known]
        gains = [np.log(alone[s.quantizer.tensor] / s.own_noise) for s in known]
        for subject in same:
            gain = np.interp(subject.knobs.place, places, gains) if known else 0.0
            expected[subject.quantizer.tensor] = subject.own_noise * float(np.exp(gain))
    return expected


def find_causes(subject: Subject) -> tuple[Cause, ...]:
    """Return why a tensor loses what it loses."""
    quantizer = subject.quantizer
    if subject.weight is not None:
        return causes.weight_causes(quantizer, subject.weight, subject.bias, quantizer.channel_axis)
    if subject.seen is None:
        return ()
    return causes.activation_causes(quantizer, subject.seen, subject.join)


def _share(noise: float, total: float) -> float:
    return noise / total if total else 0.0


def _affordable(harness: Harness, ranked: Sequence[Subject], effort: float) -> list[Subject]:
    """Return the first subjects whose runs stay within the effort."""
    chosen: list[Subject] = []
    for subject in ranked:
        effort -= _PASS * harness.share(subject.knobs.place)
        if effort < 0 and len(chosen) >= _FEWEST:
            break
        chosen.append(subject)
    return chosen


def _measure(
    harness: Harness, subjects: Sequence[Subject], samples: int, base: str
) -> dict[str, float]:
    """Return the outputs' noise with one tensor quantized alone, or alone left in float."""
    alone = base == "float"
    variants = [
        Variant(
            "float" if alone else "quantized",
            {subject.knobs.switch: _ON if alone else _OFF},
            subject.knobs.place,
        )
        for subject in subjects
    ]
    # What is left with everything in float is nobody's: weights that cannot be told apart,
    # and arithmetic of the target.
    rest = harness.noise_of("float", samples) if alone else 0.0
    found = harness.noise(variants, samples)
    return {
        s.quantizer.tensor: max(0.0, noise - rest) for s, noise in zip(subjects, found, strict=True)
    }


def _with_suggested_fixes(
    harness: Harness,
    rows: Sequence[BudgetRow],
    closer: Mapping[str, Subject],
    kept: Mapping[str, float],
    samples: int,
    target: Target,
    now: float,
) -> list[BudgetRow]:
    """Return the rows, the worst of them with what was tried on them."""
    done = []
    for index, row in enumerate(rows):
        subject = closer.get(row.tensor)
        if subject is None or index >= _MENDED:
            done.append(row)
            continue
        trials = _trials(subject, row.causes, target)
        variants = [Variant("quantized", t.changes, subject.knobs.place) for t in trials]
        # To leave the tensor in float has been tried already.
        new = [v for v in variants if len(v.changes) > 1 or subject.knobs.switch not in v.changes]
        noises = iter(harness.noise(new, samples))
        tried = []
        for trial, variant in zip(trials, variants, strict=True):
            after = decibels(next(noises) if variant in new else kept[row.tensor])
            gain = after - decibels(now)
            tried.append(
                SuggestedFix(what=trial.what, config=trial.config, sqnr_db=after, gain_db=gain)
            )
        tried.sort(key=lambda mend: -mend.gain_db)
        done.append(msgspec.structs.replace(row, suggested_fixes=tuple(tried)))
    return done


def _trials(subject: Subject, found: Sequence[Cause], target: Target) -> list[suggestions.Trial]:
    quantizer, knobs = subject.quantizer, subject.knobs
    if subject.weight is not None:
        return suggestions.weight_trials(quantizer, subject.weight, knobs, target)
    if subject.seen is None:
        return []
    return suggestions.activation_trials(quantizer, found, subject.seen, knobs, target)
