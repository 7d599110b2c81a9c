"""Compare a quantized model with its float reference, on the same samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import onnx_ir as ir

from lowbit.calibrate.pooled import add_rows, map_row_steps, rows_of
from lowbit.calibrate.subsampling import subsampled
from lowbit.errors import ModelError, did_you_mean
from lowbit.evaluate.output_evaluation import OutputEvaluation
from lowbit.evaluate.outputs import OutputSlice, SliceErrors, find_slices
from lowbit.evaluate.runner import (
    ComparedSample,
    Outputs,
    ReferenceSample,
    Run,
    output_names,
    run_models,
    run_models_in_turn,
)
from lowbit.evaluate.same_outputs import (
    check_same_outputs,
    finite_pair,
    is_number,
    outputs_sized_by_data,
)
from lowbit.evaluate.verdict import Verdict
from lowbit.graph.openvino import Runtime
from lowbit.graph.pooling import add_pools, highest_of, large_maps, lowest_of
from lowbit.graph.session import Array, Feed
from lowbit.numerics.metrics import SignalNoise
from lowbit.numerics.spacing import evenly_inside

SignalNoises = dict[str, SignalNoise]

# Numbers of one sample's map from which on some rows of it leave the graph: all maps that do wait for
# the last of them.
_HANDED_OUT = 1 << 15


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """A float model, and its tensors by name with what they are called in the quantized one.

    ``must_agree``: shape and type of each must be equal, and every value finite that is so in float.
    Those that are ``sized_by_data`` may have other sizes.
    """

    model: ir.Model
    pairs: Mapping[str, str]
    must_agree: bool = False
    sized_by_data: frozenset[str] = frozenset()


def output_reference(reference: ir.Model, quantized: ir.Model) -> Reference:
    """Return the reference for all outputs of a model."""
    names, have = output_names(reference), output_names(quantized)
    for name in names:
        if name not in have:
            raise ModelError(
                f"the quantized model has no output {name!r}{did_you_mean(name, have)} "
                f"(it has {', '.join(have)}); is it made from this float model?"
            )
    return Reference(
        reference,
        {name: name for name in names},
        must_agree=True,
        sized_by_data=outputs_sized_by_data(reference),
    )


def compare_tensors(
    references: Sequence[Reference], quantized: ir.Model, feeds: Iterable[Feed]
) -> list[SignalNoises]:
    """Return signal and noise of the tensors of each reference."""
    comparison = TensorComparison(references, quantized)
    if comparison.runs:
        for _, found in run_models_in_turn(comparison.runs, feeds):
            comparison.add(found)
    return comparison.totals


class TensorComparison:
    """Signal and noise of tensors, added up over samples.

    Attributes:
        runs: What has to be run, the quantized model first; nothing if nothing is compared.
        totals: Of each reference, what was found so far.
    """

    def __init__(
        self, references: Sequence[Reference], quantized: ir.Model, *, quick: bool = False
    ) -> None:
        """Begin; ``quick``: the quantized model runs as it does to be evaluated."""
        self.totals: list[SignalNoises] = [{} for _ in references]
        whole = {b for r in references for a, b in r.pairs.items() if a == b}
        self._used = [
            (_Subsampled.of(reference, whole), total)
            for reference, total in zip(references, self.totals, strict=True)
            if reference.pairs
        ]
        used = [r for r, _ in self._used]
        steps = {r.reference.pairs[a]: step for r in used for a, step in r.steps.items()}
        names = list(dict.fromkeys(b for r in used for b in r.reference.pairs.values()))
        self._rows = rows = {b: rows_of(b) for b in steps}

        def keep(name: str, array: Array) -> Array:
            return array if name in whole or name in rows.values() else subsampled(array)

        thin = _with_rows(quantized, steps)
        run = Run.quantized_model(thin, [rows.get(name, name) for name in names])
        run = dataclasses.replace(run.quick() if quick else run, keep=keep)
        self.runs = [run, *(r.run() for r in used)] if used else []

    def add(self, outputs: Sequence[Outputs | None]) -> None:
        """Add what all models gave for a sample; nothing if they were not run on it."""
        if not outputs or outputs[0] is None:
            return
        got, wants = outputs[0], outputs[1:]
        found = {**got, **{b: got[row] for b, row in self._rows.items()}}
        for (r, total), want in zip(self._used, wants, strict=True):
            r.add(total, want or {}, found)


def _with_rows(model: ir.Model, steps: Mapping[str, int]) -> ir.Model:
    """Return a model that also hands out some rows of the named maps; the same if there are none."""
    if not steps:
        return model
    model = model.clone()
    add_rows(model.graph, steps)
    return model


@dataclasses.dataclass(frozen=True, slots=True)
class _Subsampled:
    """A reference, with the large maps of which the graphs themselves take some rows.

    All maps of a large image together would take gigabytes.
    """

    reference: Reference
    steps: Mapping[str, int]

    @classmethod
    def of(cls, reference: Reference, whole: AbstractSet[str]) -> _Subsampled:
        """Find the large maps that are compared by some rows in any case, none of the ``whole``."""
        graph = reference.model.graph
        large, steps = large_maps(graph, _HANDED_OUT), map_row_steps(graph)
        rows = {a for a, b in reference.pairs.items() if b not in whole} & large
        return cls(reference, {a: step for a, step in steps.items() if a in rows})

    def run(self) -> Run:
        """Return the run of the float model."""
        model = _with_rows(self.reference.model, self.steps)
        add_pools(model.graph, self.steps, self.steps)
        names = [name for name in self.reference.pairs if name not in self.steps]
        run = Run.float_model(model, [*names, *(n for a in self.steps for n in _taken_of(a))])
        return dataclasses.replace(run, optimize="plain") if self.steps else run

    def add(self, total: SignalNoises, want: Outputs, got: Outputs) -> None:
        """Add one sample."""
        parts = {name for a in self.steps for name in _taken_of(a)}
        plain = {name: array for name, array in want.items() if name not in parts}
        if self.reference.must_agree:
            sized_by_data = self.reference.sized_by_data
            check_same_outputs(plain, got, sized_by_data=sized_by_data)
        for name, array in plain.items():
            # The arrays of a sequence have names of their own, the same in both models.
            paired = self.reference.pairs.get(name, name)
            part = array if name == paired else subsampled(array)
            # The largest is that of all values: what overflows is rare.
            _add(total, name, part, got.get(paired), (array, array))
        for name in self.steps if want else ():
            rows, highest, lowest = (want[taken] for taken in _taken_of(name))
            _add(total, name, rows, got.get(self.reference.pairs[name]), (highest, lowest))


def _taken_of(name: str) -> tuple[str, str, str]:
    """Return what is taken of a large map: some rows, its largest values and its smallest."""
    return rows_of(name), highest_of(name), lowest_of(name)


def _add(
    total: SignalNoises, name: str, want: Array, got: Array | None, ends: tuple[Array, Array]
) -> None:
    """Add a tensor of one sample; ``ends`` hold its largest and its smallest values."""
    if got is not None and _is_comparable(want, got):
        largest = max(float(ends[0].max()), -float(ends[1].min())) if ends[0].size else 0.0
        found = dataclasses.replace(SignalNoise.of(*finite_pair(want, got)), largest=largest)
        total[name] = total[name] | found if name in total else found


def _is_comparable(want: Array, got: Array) -> bool:
    return is_number(want) and want.shape == got.shape


Listener = Callable[[Outputs, Outputs, "Outputs | None"], None]
"""A callback with the outputs of the float, quantized and fused model for each sample, in order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of all runs.

    Attributes:
        outputs: Of each output, over all samples.
        slices: The slices of outputs; ``sliced`` are their figures, where there are any.
        fused: Of each output through fused kernels; ``exact`` over the same samples without.
        samples: Some samples with the float outputs.
        shown: The first samples with what both models give.
        count: How many samples there were.
        verdict: How good the quantized model is, if that was asked for and can be said.
    """

    outputs: Mapping[str, SignalNoise]
    slices: tuple[OutputSlice, ...]
    sliced: Mapping[str, SignalNoise]
    fused: Mapping[str, SignalNoise]
    exact: Mapping[str, SignalNoise]
    samples: tuple[ReferenceSample, ...]
    count: int
    shown: tuple[ComparedSample, ...] = ()
    verdict: Verdict | None = None


def compare_outputs(
    reference: ir.Model,
    quantized: ir.Model,
    names: Sequence[str],
    feeds: Iterable[Feed],
    *,
    fused: frozenset[int],
    keep: frozenset[int],
    listener: Listener,
    runtime: Runtime = "onnxruntime",
    show: int = 0,
    measured: Mapping[str, str] | None = None,
    fused_decides: bool = False,
) -> Comparison:
    """Run every sample through both models.

    ``fused`` are the numbers of the samples to run through the fused kernels as well, ``keep`` of
    those to return; ``show`` is how many to return with what both models give. ``runtime``: whose kernels
    these are. With ``measured``, the tensors that a verdict needs and what the quantized model calls
    them, there is one; ``fused_decides``: that of the fused kernels, if it is worse.
    """
    pairs = {**{name: name for name in names}, **(measured or {})}
    exact = Run.quantized_model(quantized, list(dict.fromkeys(pairs.values())))
    runs = [Run.float_model(reference, list(pairs)), exact]
    if fused:
        name = "the quantized model, fused"
        runs.append(
            dataclasses.replace(exact, optimize="all", samples=fused, name=name, runtime=runtime)
        )
    inner = (pairs.keys() | pairs.values()) - set(names)
    sums = _Sums(frozenset(names), outputs_sized_by_data(reference))
    evaluation = OutputEvaluation(reference, pairs)
    for feed, (whole, *others) in run_models(runs, feeds):
        want, got, *quick = (_without(found, inner) for found in (whole, *others))
        if whole is None or want is None or got is None:
            continue
        if measured is not None:
            evaluation.add(feed, whole, others if fused_decides else others[:1])
        last = quick[0] if quick else None
        sums.add(want, got, last)
        if sums.count - 1 in keep:
            sums.samples.append(ReferenceSample(feed, want))
        if sums.count <= show:
            sums.shown.append(ComparedSample(feed, want, got))
        listener(want, got, last)
    return dataclasses.replace(sums.result(), verdict=evaluation.verdict(held_out=None))


def _without(found: Outputs | None, names: AbstractSet[str]) -> Outputs | None:
    return None if found is None else {n: array for n, array in found.items() if n not in names}


class _Sums:
    """Figures added up over samples."""

    def __init__(self, names: frozenset[str], sized_by_data: frozenset[str]) -> None:
        self._names, self._sized_by_data = names, sized_by_data
        self.count = 0
        self.samples: list[ReferenceSample] = []
        self.shown: list[ComparedSample] = []
        self._slices: tuple[OutputSlice, ...] = ()
        self._whole: list[SliceErrors] = []
        self._sliced: SliceErrors | None = None
        self._any_fused = False

    def add(self, want: Outputs, got: Outputs, last: Outputs | None) -> None:
        check_same_outputs(want, got, types=False, sized_by_data=self._sized_by_data)
        if not self._whole:
            whole = [
                OutputSlice(name)
                for name, array in want.items()
                if name in got and _is_comparable(array, got[name])
            ]
            self._whole = [SliceErrors(whole) for _ in range(3)]
            # Arrays of a sequence cannot be asked for by themselves, and slices need fixed sizes.
            plain = [
                part.output for part in whole if part.output in self._names - self._sized_by_data
            ]
            self._slices = find_slices({name: want[name] for name in plain})
            self._sliced = SliceErrors(self._slices)
        self._whole[0].add(want, got)
        if last is not None:
            self._any_fused = True
            self._whole[1].add(want, last)
            self._whole[2].add(want, got)
        if self._sliced is not None:
            self._sliced.add(want, got)
        self.count += 1

    def result(self) -> Comparison:
        whole = [errors.by_name() for errors in self._whole] or [{}, {}, {}]
        split = any(part.axis is not None for part in self._slices)
        return Comparison(
            outputs=whole[0],
            slices=self._slices,
            sliced=self._sliced.by_name() if self._sliced and split else {},
            fused=whole[1] if self._any_fused else {},
            exact=whole[2] if self._any_fused else {},
            samples=tuple(self.samples),
            count=self.count,
            shown=tuple(self.shown),
        )


def spread(total: int, count: int) -> frozenset[int]:
    """Return the numbers of ``count`` of ``total`` samples, evenly spaced."""
    return frozenset(range(total) if count >= total else evenly_inside(total, count))
