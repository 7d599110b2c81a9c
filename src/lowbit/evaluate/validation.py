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
from lowbit.numerics.formats import DoubleArray
from lowbit.numerics.metrics import channel_decibels

_ROOM_FOR_OUTPUTS = 64 << 20


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

    def sqnr(self, quantized: ir.Model, names: Mapping[str, str] | None = None) -> DoubleArray:
        """Return the mean SQNR of each sample; no sample if nothing can be measured.

        ``names`` are what the quantized model calls tensors, if not as the float model does.
        """
        return self.sqnr_of_each([quantized], names)[0]

    def sqnr_of_each(
        self, models: Sequence[ir.Model], names: Mapping[str, str] | None = None
    ) -> list[DoubleArray]:
        """Return the same of several models that are run side by side, all with the same ``names``."""
        names = names or {name: name for name in output_names(self._reference)}
        rows = self.measured(names)
        wanted = list({names[row.tensor]: 0 for row in rows})
        runs = [Run.quantized_model(model, wanted).quick() for model in models]
        found: list[list[float]] = [[] for _ in models]
        for want, outputs in compared_with_each(runs, self._samples) if rows else ():
            for ratios, got in zip(found, outputs, strict=True):
                each = _decibels_of_rows(rows, want, got, names)
                if len(each):
                    ratios.append(float(np.mean(each)))
        return [np.array(ratios) for ratios in found]

    def sqnr_of_outputs(
        self, quantized: ir.Model, names: Mapping[str, str]
    ) -> dict[MeasuredOutput, float]:
        """Return the mean SQNR of each output by itself."""
        rows = self.measured(names)
        run = Run.quantized_model(quantized, list({names[r.tensor]: 0 for r in rows})).quick()
        found: dict[MeasuredOutput, list[float]] = {row: [] for row in rows}
        for want, outputs in compared_with_each([run], self._samples) if rows else ():
            for row, ratios in found.items():
                ratios += list(_decibels_of_rows([row], want, outputs[0], names))
        return {row: float(np.mean(ratios)) for row, ratios in found.items() if ratios}

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
) -> DoubleArray:
    """Return the mean SQNR of each output; scores have only one, since most are next to nothing."""
    found = []
    for row in rows:
        a, b = (row.of(array, want) for array in (want[row.tensor], got[names[row.tensor]]))
        is_one = row.kind == "scores" and a.shape == b.shape
        ratios = decibels_of([(a.reshape(-1), b.reshape(-1)) if is_one else (a, b)])
        found += [float(np.mean(ratios))] if len(ratios) else []
    return np.array(found)


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

    @property
    def is_better(self) -> bool:
        """Whether the SQNR rises by more than the rise varies between samples."""
        return self.mean > self.standard_error

    @property
    def is_not_worse(self) -> bool:
        """Whether the SQNR falls by less than the fall varies between samples, or rises."""
        return self.mean > -self.standard_error

    def describe(self) -> str:
        """Return it in words: ``+0.66 dB (standard error 0.84) on 8 samples``."""
        return f"{self.mean:+.2f} dB (standard error {self.standard_error:.2f}) on {self.samples} samples"
