"""Measure on held-out samples which of two quantized models is nearer to the float model.

The measure is the SQNR in decibels, averaged over the channels of an output, then over outputs and samples: an
average of logarithms gives boxes in pixels and scores below one equal weight, the four numbers of a box count as
much as its score, and one bad sample cannot outvote the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.data.split import quarters_of
from lowbit.evaluate.kept_samples import kept_samples
from lowbit.evaluate.output_kinds import MeasuredOutput, find_measured, measured_tensors, seen_in
from lowbit.evaluate.runner import (
    Outputs,
    ReferenceSample,
    Run,
    compared_with_each,
    output_names,
    reference_samples,
)
from lowbit.graph.session import Array, Feed
from lowbit.graph.sharing import sharing_of
from lowbit.numerics.formats import DoubleArray
from lowbit.numerics.intervals import half_interval
from lowbit.numerics.metrics import channel_decibels

_ROOM_FOR_OUTPUTS = 64 << 20
# Samples that tell whether a change gains or loses without a doubt: the spread of fewer is hardly known.
_LEAST_LOOK, _ALL = 4, slice(None)
# How likely the samples that were left out would have decided otherwise.
_DOUBT = 0.01
# How likely samples look so much worse by chance, at most, where a model is called worse.
_WORSE = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Ratios:
    """The SQNR of each measured output on each sample, as far as it has one there."""

    by_sample: tuple[Mapping[MeasuredOutput, float], ...]

    def __add__(self, other: Ratios) -> Ratios:
        """Return those of both, of other samples each."""
        return Ratios((*self.by_sample, *other.by_sample))

    def first(self, count: int) -> Ratios:
        """Return those of the first samples."""
        return Ratios(self.by_sample[:count])

    @property
    def of_samples(self) -> DoubleArray:
        """The mean over outputs for each sample that has any."""
        return np.array([np.mean(list(ratios.values())) for ratios in self.by_sample if ratios])

    @property
    def of_outputs(self) -> dict[MeasuredOutput, float]:
        """The mean over samples for each output that has any."""
        found: dict[MeasuredOutput, list[float]] = {}
        for ratios in self.by_sample:
            for row, ratio in ratios.items():
                found.setdefault(row, []).append(ratio)
        return {row: float(np.mean(ratios)) for row, ratios in found.items()}


class Validation:
    """The float model's outputs on some samples, to measure quantized models by."""

    def __init__(self, reference: ir.Model, feeds: Iterable[Feed]) -> None:
        """Run the float model; as many samples are kept as their outputs leave room for."""
        self._reference = reference
        run = Run.float_model(reference, measured_tensors(reference))
        self._samples = kept_samples(reference_samples(run, feeds, _ROOM_FOR_OUTPUTS))

    def __len__(self) -> int:
        """Return how many samples it measures on."""
        return len(self._samples)

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many samples it is asked whether the others could still decide otherwise.

        Of large samples only: to open a model again, where they could, takes longer than to run small ones.
        """
        count = len(self)
        if not count or not sharing_of(self._samples[0].feed, self._reference).one_by_one:
            return ()
        looks = {max(n, _LEAST_LOOK) for n in quarters_of(count)[:2]}
        return tuple(sorted(n for n in looks if n < count))

    def sqnr(self, quantized: ir.Model, names: Mapping[str, str] | None = None) -> DoubleArray:
        """Return the mean SQNR of each sample; no sample if nothing can be measured.

        ``names`` are what the quantized model calls tensors, if not as the float model does.
        """
        names = names or {name: name for name in output_names(self._reference)}
        return self.ratios([quantized], names)[0].of_samples

    def ratios(
        self, models: Sequence[ir.Model], names: Mapping[str, str], samples: slice = _ALL
    ) -> list[Ratios]:
        """Return the SQNR of several models that are run side by side, all with the same ``names``."""
        rows = self.measured(names)
        wanted = list({names[row.tensor]: 0 for row in rows})
        runs = [Run.quantized_model(model, wanted).quick() for model in models]
        found: list[list[Mapping[MeasuredOutput, float]]] = [[] for _ in models]
        for want, outputs in compared_with_each(runs, self._samples[samples]) if rows else ():
            for ratios, got in zip(found, outputs, strict=True):
                ratios.append(_decibels_of_rows(rows, want, got, names))
        return [Ratios(tuple(ratios)) for ratios in found]

    @property
    def samples(self) -> Sequence[ReferenceSample]:
        """The samples, with what the float model gives for them."""
        return self._samples

    def tensors(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return what is measured, as the float model and the quantized one call it."""
        return {row.tensor: names[row.tensor] for row in self.measured(names)}

    def measured(self, names: Mapping[str, str]) -> list[MeasuredOutput]:
        """Return the float tensors that the verdict rests on: before what saturates."""
        seen = seen_in(sample.outputs for sample in self._samples)
        found = find_measured(self._reference, seen, names)
        # Arrays of a sequence cannot be asked for by themselves.
        return [
            r for r in found if r.tensor in names and seen.strongest[r.tensor].dtype.kind == "f"
        ]


def _decibels_of_rows(
    rows: Sequence[MeasuredOutput], want: Outputs, got: Outputs, names: Mapping[str, str]
) -> dict[MeasuredOutput, float]:
    """Return the mean SQNR of each output; scores have only one, since most are next to nothing."""
    found: dict[MeasuredOutput, float] = {}
    for row in rows:
        a, b = (row.of(array, want) for array in (want[row.tensor], got[names[row.tensor]]))
        is_one = row.kind == "scores" and a.shape == b.shape
        ratios = decibels_of([(a.reshape(-1), b.reshape(-1)) if is_one else (a, b)])
        if len(ratios):
            found[row] = float(np.mean(ratios))
    return found


def decibels_of(pairs: Iterable[tuple[Array, Array]]) -> DoubleArray:
    """Return the SQNR of each channel of pairs of tensors, the wanted one first."""
    parts = [
        channel_decibels(a, b)
        for a, b in pairs
        if a.dtype.kind == "f" and a.shape == b.shape and a.size
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


@dataclasses.dataclass(frozen=True, slots=True)
class Gain:
    """The change of the SQNR: its mean over samples, and the standard error."""

    mean: float
    standard_error: float
    samples: int

    @classmethod
    def of(cls, before: DoubleArray, after: DoubleArray) -> Gain:
        """Return the gain of the same samples, before and after."""
        gain = after - before
        error = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
        return cls(float(gain.mean()) if len(gain) else 0.0, error, len(gain))

    def is_decided(self, total: int, *, unless_worse: bool = False) -> bool:
        """Whether the rest of ``total`` samples would hardly change that it is better; ``unless_worse``: not worse."""
        if self.samples >= total:
            return True
        if self.samples < 2:
            return False
        spread = self.standard_error * math.sqrt(self.samples)
        # The mean of all, as far from that of the first ones as it may be, and their standard error.
        off = half_interval(spread * math.sqrt(1 / self.samples - 1 / total), self.samples, _DOUBT)
        error = spread / math.sqrt(total)
        limit = -half_interval(error, total, _WORSE) if unless_worse else error
        return abs(self.mean - limit) > off

    @property
    def is_better(self) -> bool:
        """Whether the SQNR rises by more than the rise varies between samples."""
        return self.mean > self.standard_error

    @property
    def is_not_worse(self) -> bool:
        """Whether the SQNR rises, or falls by no more than it may by chance.

        How much it varies is hardly known from few samples, so they have to show more of a fall.
        """
        if self.samples < 2:
            return self.mean > 0
        return self.mean > -half_interval(self.standard_error, self.samples, _WORSE)

    def describe(self) -> str:
        """Return it in words: ``+0.66 dB (standard error 0.84) on 8 samples``."""
        return f"{self.mean:+.2f} dB (standard error {self.standard_error:.2f}) on {self.samples} samples"
