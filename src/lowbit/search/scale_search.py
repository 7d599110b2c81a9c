"""Choose scales of activations by the error of the outputs.

A scale of least squared error holds the tensor's largest values, and they may matter little: at the sums
that residual blocks of MobileNetV2 end in, an eighth of that scale leaves a thirtieth of the noise in the
logits. So each activation is quantized alone, everything else in float, and tried with other scales.
The noise of single tensors adds up, so the best scale for each is the best for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from lowbit.config.scale_search import ScaleSearch
from lowbit.evaluate.validation import Gain, Validation, decibels_of
from lowbit.numerics.formats import DoubleArray
from lowbit.numerics.spacing import evenly_spaced
from lowbit.pipeline.pipeline import Pipeline
from lowbit.pipeline.verify import quantized_names
from lowbit.report.values import Step
from lowbit.search.expected_error import ExpectedError
from lowbit.search.keep_if_better import compared_step
from lowbit.search.promotion_graph import rescaled_tensor, scale_groups
from lowbit.search.switched_model import can_be_switched, is_run_in_parts, open_switched
from lowbit.search.switched_parts import Switching
from lowbit.state import Planned, Quantized

_STEP = 2**-0.5
"""Scales that need not be powers of two are tried in such steps, and in half steps around the best."""

_LEAST, _MOST = 1 / 16, 4.0
"""Factors are within these."""

_FIRST, _TELLING, _TRIED = 4, 0.004, 48
"""Samples that show how noisy a tensor is, the share of all noise below which it is left alone, and how many
tensors are tried with other scales at most: a large network is not to take hours."""

_NAME = "scales by outputs"

Group = tuple[str, ...]
Decibels = Callable[[Mapping[str, float], Sequence[int]], DoubleArray]
"""Returns the SQNR of samples with some activations quantized, by their factors, and all else in float."""


def search_scales(
    pipeline: Pipeline, state: Quantized, config: ScaleSearch
) -> tuple[Quantized, tuple[Step, ...]]:
    """Return the model with other scales if that is better on held-out samples, and what was tried."""
    samples = state.samples
    groups = tuned_groups(state)
    if samples is None or samples.data.is_random or not groups or not can_be_switched(state):
        return state, ()
    if is_run_in_parts(state):  # thousands of passes over a model so large would take hours
        return state, ()
    with pipeline.clock.charge("search"):
        seen = Validation(state.loaded, samples.fitting().spread(config.samples))
        factors = _factors(pipeline, state, seen, groups)
        if not factors:
            return state, ()
        overrides = tuple(rescaled_tensor(state, name, factor) for name, factor in factors.items())
        tensors = (*state.config.tensors, *overrides)
        chosen = msgspec.structs.replace(state.config, tensors=tensors, scale_search=None)
        candidate = pipeline.rebuilt(state, chosen)
        validation = Validation(state.loaded, samples.validation())
        before, after = (ExpectedError(validation, each) for each in (state, candidate))
        step = compared_step(_NAME, validation, before, after)
    return candidate if step.kept else state, (step,)


def tuned_groups(state: Planned) -> list[Group]:
    """Return the activations with scales of their own; scores that decide between classes keep their range."""
    planned = state.plan.by_name()
    return [
        tuple(group)
        for group in scale_groups(state)
        if all(planned[name].headroom is None for name in group)
    ]


def _factors(
    pipeline: Pipeline, state: Quantized, seen: Validation, groups: Sequence[Group]
) -> dict[str, float]:
    """Return the factors to multiply scales by."""
    found: dict[str, float] = {}
    with _measuring(state, seen) as decibels:
        if decibels is None:
            return found
        noisy = noisy_groups(groups, decibels, len(seen))
        for done, group in enumerate(noisy):
            pipeline.clock.tell("search", done, len(noisy))
            is_power_of_two = state.plan.by_name()[group[0]].integer.power_of_two
            line = _Line(group, decibels, range(len(seen)))
            factor = line.best(is_power_of_two=is_power_of_two)
            found |= dict.fromkeys(group, factor) if factor != 1.0 else {}
    return found


@contextlib.contextmanager
def _measuring(state: Quantized, seen: Validation) -> Iterator[Decibels | None]:
    """Yield what measures the outputs with few tensors quantized, if there is anything to measure."""
    names = quantized_names(state)
    tensors = seen.tensors(names)
    every = frozenset(state.plan.by_name())
    outputs = list(dict.fromkeys(tensors.values()))
    if not tensors:
        yield None
        return
    with open_switched(state, outputs, seen.samples) as model:

        def decibels(factors: Mapping[str, float], samples: Sequence[int]) -> DoubleArray:
            choice = Switching(every - set(factors), tuple(factors.items()))
            (rows,) = model.run_all([choice], samples)
            found = [
                decibels_of((want[a], got[b]) for a, b in tensors.items()) for want, got in rows
            ]
            return np.array([float(np.mean(each)) for each in found if len(each)])

        yield decibels


def noisy_groups(groups: Sequence[Group], decibels: Decibels, count: int) -> list[Group]:
    """Return the groups with more than a negligible share of the noise, the noisiest first."""
    few = evenly_spaced(count, _FIRST)
    noises = {group: noise_of(decibels(dict.fromkeys(group, 1.0), few)) for group in groups}
    least = _TELLING * sum(noises.values())
    noisy = sorted((g for g in groups if noises[g] > least), key=lambda g: -noises[g])
    return noisy[:_TRIED]


def noise_of(decibels: DoubleArray) -> float:
    """Return the mean noise of samples over their signal: one that is clipped outvotes many."""
    return float(np.mean(np.power(10.0, -decibels / 10))) if len(decibels) else 0.0


@dataclasses.dataclass(slots=True)
class _Line:
    """The factors that are tried on the scale of one group."""

    group: Group
    measure: Decibels
    samples: Sequence[int]
    _known: dict[float, DoubleArray] = dataclasses.field(default_factory=dict)

    def best(self, *, is_power_of_two: bool) -> float:
        """Return the best factor; one if no other is better by more than that varies between samples."""
        step = 0.5 if is_power_of_two else _STEP
        found = self._descended(step)
        if found == 1.0:
            found = self._descended(1 / step)
        if not is_power_of_two:
            found = min((found, found * step**0.5, found / step**0.5), key=self._noise)
        gain = Gain.of(self._decibels(1.0), self._decibels(found))
        return found if gain.is_better else 1.0

    def _descended(self, step: float) -> float:
        """Return the factor beyond which noise no longer falls."""
        found = 1.0
        while _LEAST <= found * step <= _MOST and self._noise(found * step) < self._noise(found):
            found *= step
        return found

    def _noise(self, factor: float) -> float:
        return noise_of(self._decibels(factor))

    def _decibels(self, factor: float) -> DoubleArray:
        if factor not in self._known:
            self._known[factor] = self.measure(dict.fromkeys(self.group, factor), self.samples)
        return self._known[factor]
