"""The verdict on a quantized model from what both models give, sample by sample."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import onnx_ir as ir

from lowbit.evaluate.figures import LEVELS
from lowbit.evaluate.output_errors import OutputErrors
from lowbit.evaluate.output_kinds import find_measured, measured_tensors, seen_in
from lowbit.evaluate.runner import Outputs, Run, output_names, run_models
from lowbit.evaluate.same_outputs import (
    check_same_outputs,
    finite_pair,
    is_number,
    outputs_sized_by_data,
)
from lowbit.evaluate.verdict import Verdict
from lowbit.graph.session import Array, Feed
from lowbit.numerics.metrics import SignalNoise

# Samples that tell what the outputs are, and whether they are the float model's still.
_FIRST = 4


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluatedOutputs:
    """The verdict, and signal and noise of each output, over the same samples."""

    verdict: Verdict | None
    outputs: Mapping[str, SignalNoise]
    samples: int = 0


def evaluate_outputs(
    reference: ir.Model,
    quantized: ir.Model,
    feeds: Iterable[Feed],
    names: Mapping[str, str],
    *,
    held_out: bool,
    fused: bool = False,
    total: int = 0,
    looks: Collection[int] = (),
) -> EvaluatedOutputs:
    """Run both models on all samples; ``names`` are what the quantized model calls tensors.

    ``fused``: the quantized model runs in a default session as well, and the worse verdict holds.
    ``looks``: after how many samples the others, of ``total``, are left out if they could not change the level.
    """
    evaluator = OutputEvaluator(reference, quantized, names, fused=fused)
    with contextlib.closing(run_models(evaluator.runs, feeds, looks)) as results:
        for count, (feed, found) in enumerate(results, start=1):
            evaluator.add(feed, found)
            if count in looks and evaluator.is_certain(total):
                break
    return evaluator.result(held_out=held_out)


class OutputEvaluator:
    """Takes in what both models give, sample by sample; ``runs`` are what has to be run."""

    def __init__(
        self,
        reference: ir.Model,
        quantized: ir.Model,
        names: Mapping[str, str],
        *,
        fused: bool = False,
    ) -> None:
        """Begin; see ``evaluate_outputs``."""
        outputs = output_names(reference)
        measured = [name for name in measured_tensors(reference) if name in names]
        wanted = list(dict.fromkeys((*measured, *outputs)))
        given = list(dict.fromkeys((*(names[name] for name in measured), *outputs)))
        exact = Run.quantized_model(quantized, given).quick()
        self.runs = [Run.float_model(reference, wanted), exact]
        if fused:
            name = "the quantized model, fused"
            self.runs.append(dataclasses.replace(exact, optimize="all", name=name))
        self._evaluation = OutputEvaluation(reference, names)
        # The arrays of a sequence have names of their own: all other tensors are outputs.
        self._sums = _OutputSums(
            frozenset(measured) - set(outputs), outputs_sized_by_data(reference)
        )

    def add(self, feed: Feed, found: Sequence[Outputs | None]) -> None:
        """Add what the models gave for a sample."""
        want, *others = found
        if want is not None:
            self._evaluation.add(feed, want, others)
            self._sums.add(want, others[0] or {})

    def is_certain(self, total: int) -> bool:
        """Whether the rest of ``total`` samples would hardly change the level of any output."""
        return self._evaluation.is_certain(total)

    def result(self, *, held_out: bool) -> EvaluatedOutputs:
        """Return the verdict on all samples, and the sums over them."""
        verdict = self._evaluation.verdict(held_out=held_out)
        return EvaluatedOutputs(verdict, self._sums.by_name, self._sums.count)


class _OutputSums:
    """Signal and noise of the outputs, added up over samples; the first ones must agree otherwise."""

    def __init__(self, inner: frozenset[str], sized_by_data: frozenset[str]) -> None:
        """Begin; ``inner`` are tensors that are no outputs."""
        self._inner, self._sized_by_data = inner, sized_by_data
        self.count = 0
        self.by_name: dict[str, SignalNoise] = {}

    def add(self, want: Outputs, got: Outputs) -> None:
        outputs = {name: array for name, array in want.items() if name not in self._inner}
        if self.count < _FIRST:
            check_same_outputs(outputs, got, sized_by_data=self._sized_by_data)
        self.count += 1
        for name, array in outputs.items():
            found = got.get(name)
            if found is not None and is_number(array) and array.shape == found.shape:
                before = self.by_name.get(name, SignalNoise())
                self.by_name[name] = before | _compared(array, found)


def _compared(want: Array, got: Array) -> SignalNoise:
    largest = max(float(want.max()), -float(want.min())) if want.size else 0.0
    return dataclasses.replace(SignalNoise.of(*finite_pair(want, got)), largest=largest)


class OutputEvaluation:
    """Takes in what models give, sample by sample; the first few tell what the outputs are."""

    def __init__(self, reference: ir.Model, names: Mapping[str, str]) -> None:
        """Begin; ``names`` are what the quantized model calls tensors."""
        self._reference, self._names = reference, names
        self._first: list[tuple[Feed, Outputs, Sequence[Outputs | None]]] = []
        self._errors: list[OutputErrors] = []

    def add(self, feed: Feed, want: Outputs, others: Sequence[Outputs | None]) -> None:
        """Add a sample: the float model's outputs, then the exact and the fused quantized model's."""
        if self._errors:
            self._take(feed, want, others)
            return
        self._first.append((feed, want, others))
        if len(self._first) == _FIRST:
            self._begin()

    def is_certain(self, total: int) -> bool:
        """Whether the rest of ``total`` samples would hardly change the level of any output."""
        return bool(self._errors) and all(errors.is_certain(total) for errors in self._errors)

    def verdict(self, *, held_out: bool | None) -> Verdict | None:
        """Return the worse of the verdicts; ``None`` if no output can be measured."""
        if self._first:
            self._begin()
        found = [errors.verdict(held_out=held_out) for errors in self._errors]
        return _worse(*found) if found else None

    def _begin(self) -> None:
        samples, self._first = self._first, []
        seen = seen_in(want for _, want, _ in samples)
        measured = find_measured(self._reference, seen, self._names)
        self._errors = [OutputErrors(measured, self._names) for _ in samples[0][2]]
        for sample in samples:
            self._take(*sample)

    def _take(self, feed: Feed, want: Outputs, others: Sequence[Outputs | None]) -> None:
        for own, got in zip(self._errors, others, strict=True):
            if got is not None:
                own.add(want, got, feed)


def _worse(exact: Verdict | None, fused: Verdict | None = None) -> Verdict | None:
    if exact is None or fused is None or LEVELS.index(fused.level) <= LEVELS.index(exact.level):
        return exact
    return msgspec.structs.replace(fused, fused=True)
