"""The samples that promotion is measured on, with what the float model gives for them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from lowbit.data.split import Split
from lowbit.evaluate.kept_samples import kept_samples
from lowbit.evaluate.output_errors import OutputErrors
from lowbit.evaluate.output_kinds import MeasuredOutput, find_measured, measured_tensors, seen_in
from lowbit.evaluate.runner import ReferenceSample, Run, compared, reference_samples
from lowbit.graph.session import Array
from lowbit.pipeline.verify import quantized_names
from lowbit.state import Quantized

_CONSIDERED, _SAMPLES, _FOR_PARTS = 32, 16, 3
"""Samples to choose from, those to measure a model or a choice on, and those for its parts."""

_UNSEEN = 16
"""How many unseen samples at most refinement is measured on."""

_MEMORY_FOR_OUTPUTS = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class PromotionSamples:
    """Samples that stand for all: the same share of strong and of weak ones.

    Attributes:
        chosen: The samples.
        measured: What of their outputs is compared.
        unseen: Samples that neither calibration nor refinement saw, where there are any.
    """

    chosen: tuple[ReferenceSample, ...]
    measured: tuple[MeasuredOutput, ...]
    unseen: tuple[ReferenceSample, ...]

    @classmethod
    def of(cls, state: Quantized, samples: Split) -> PromotionSamples:
        """Run the float model on samples that validate, and on some that calibrate."""
        names = quantized_names(state)
        wanted = [name for name in measured_tensors(state.loaded) if name in names]
        apart = bool(samples.validating & samples.excluded)
        held = list(samples.validation()) if apart else []
        feeds = itertools.islice(itertools.chain(held, samples.calibration()), _CONSIDERED)
        run = Run.float_model(state.loaded, wanted)
        known = kept_samples(reference_samples(run, feeds, _MEMORY_FOR_OUTPUTS))
        measured = find_measured(state.loaded, seen_in(s.outputs for s in known), names)
        chosen = [known[i] for i in _by_strength(known, measured, _SAMPLES)]
        return cls(tuple(chosen), measured, tuple(known[: len(held)][:_UNSEEN]))

    @property
    def all(self) -> range:
        """The numbers of all of them."""
        return range(len(self.chosen))

    def few(self, errors: OutputErrors) -> tuple[int, ...]:
        """Return the numbers of those that parts are measured on: most of them have most of the noise.

        Where a few samples have nearly all of it, others do not show which part it is from.
        """
        shares = errors.noise_shares()
        order = sorted(range(len(shares)), key=lambda i: -shares[i])[: (_FOR_PARTS + 1) // 2]
        spread = _by_strength(self.chosen, self.measured, _FOR_PARTS)
        return tuple(sorted(list(dict.fromkeys((*order, *spread)))[:_FOR_PARTS]))

    def errors(
        self, state: Quantized, samples: Sequence[ReferenceSample] | None = None
    ) -> OutputErrors:
        """Run a quantized model on them, or on others."""
        names = quantized_names(state)
        measured = self.found_in(names)
        errors = OutputErrors(measured, names)
        run = Run.quantized_model(state.emitted.model, [names[row.tensor] for row in measured])
        for want, got in compared(run.quick(), self.chosen if samples is None else samples):
            errors.add(want, got)
        return errors

    def found_in(self, names: dict[str, str]) -> list[MeasuredOutput]:
        """Return what a quantized model has of what is measured."""
        return [row for row in self.measured if row.tensor in names]


def _by_strength(
    samples: Sequence[ReferenceSample], measured: Sequence[MeasuredOutput], count: int
) -> list[int]:
    """Return the numbers of a few samples, evenly spaced from the strongest outputs to the weakest.

    Where few samples hold most of the signal, any few of them say little, and the strongest say too much.
    """
    if len(samples) <= count:
        return list(range(len(samples)))
    signal = np.array(
        [
            [_power(row.of(sample.outputs[row.tensor], sample.outputs)) for row in measured]
            for sample in samples
        ]
    )
    share = (signal / np.maximum(signal.sum(axis=0), 1e-30)).max(axis=1, initial=0.0)
    order = np.argsort(-share, kind="stable")
    spaced = ((np.arange(count) + 0.5) * len(samples) / count).astype(int)
    return sorted(int(order[i]) for i in spaced)


def _power(array: Array) -> float:
    return float(np.square(array, dtype=np.float64).sum()) if array.dtype.kind == "f" else 1.0
