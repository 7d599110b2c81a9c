"""Run reference and quantized model on the same samples and measure how far they are apart."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.observers import thinned
from lowbit.errors import ModelError, did_you_mean
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed, Session, session
from lowbit.numerics.metrics import SignalNoise
from lowbit.parallel import ordered_map

SignalNoises = dict[str, SignalNoise]
_Waiting = tuple[Feed, Mapping[str, Array]]

# Values of the quantized model that wait for the float one's, in bytes.
_MEMORY_FOR_VALUES = 32 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """A float model, and its tensors by name with what they are called in the quantized one."""

    model: ir.Model
    pairs: Mapping[str, str]


def of_outputs(reference: ir.Model, quantized: ir.Model) -> Reference:
    """Return the reference for all outputs of a model."""
    names = [tensor_name(value) for value in reference.graph.outputs]
    have = [tensor_name(value) for value in quantized.graph.outputs]
    for name in names:
        if name not in have:
            raise ModelError(
                f"the quantized model has no output {name!r}{did_you_mean(name, have)} "
                f"(it has {', '.join(have)}); is it made from this float model?"
            )
    return Reference(reference, {name: name for name in names})


def of_layers(reference: ir.Model, quantized: ir.Model, names: Iterable[str]) -> Reference:
    """Return the reference for inner tensors that the quantized model has dequantized."""
    have = set(ir.convenience.create_value_mapping(quantized.graph))
    pairs = {name: f"{name}_DequantizeLinear_Output" for name in names}
    return Reference(reference, {a: b for a, b in pairs.items() if b in have})


def compare_models(
    references: Sequence[Reference], quantized: ir.Model, feeds: Iterable[Feed], *, threads: int
) -> list[SignalNoises]:
    """Return the closeness of the tensors of each reference.

    One session lives at a time, as each holds the tensors of several samples: what is compared of
    the quantized model's waits for the float ones.
    """
    totals: list[SignalNoises] = [{} for _ in references]
    rest = iter(feeds)
    while waiting := _quantized_values(references, quantized, rest, threads):
        for total, reference in zip(totals, references, strict=True):
            for found in _measure_all(reference, waiting, threads):
                for name, closeness in found.items():
                    total[name] = total[name] | closeness if name in total else closeness
    return totals


def _quantized_values(
    references: Sequence[Reference], quantized: ir.Model, feeds: Iterator[Feed], threads: int
) -> list[_Waiting]:
    """Run the quantized model on as many samples as there is room for, none if none are left."""
    whole = {b for r in references for a, b in r.pairs.items() if a == b}
    names = list(dict.fromkeys(b for r in references for b in r.pairs.values()))
    first = next(feeds, None)
    if first is None or not names:
        return []
    found: list[_Waiting] = []
    room = _MEMORY_FOR_VALUES

    def more() -> Iterator[Feed]:
        yield first
        while room > 0 and (feed := next(feeds, None)) is not None:
            yield feed

    with session(quantized, names, threads=1, name="the quantized model") as running:

        def work(feed: Feed) -> _Waiting:
            values = zip(names, running.run(names, feed), strict=True)
            # Copied, the outputs too: an array of onnxruntime's keeps all of its session's memory.
            return feed, {n: np.array(x if n in whole else thinned(x)) for n, x in values}

        for feed, kept in ordered_map(work, more(), threads):
            room -= sum(array.nbytes for array in kept.values())
            found.append((feed, kept))
    return found


def _peak(values: Array) -> float:
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def _measure_all(
    reference: Reference, waiting: Sequence[_Waiting], threads: int
) -> Iterator[SignalNoises]:
    names = list(reference.pairs)
    if not names:  # onnxruntime takes an empty list of names for all outputs
        return
    with session(
        reference.model, names, threads=1, optimize="all", name="the float model"
    ) as floats:
        yield from ordered_map(
            functools.partial(_measure, reference, floats), iter(waiting), threads
        )


def _measure(reference: Reference, floats: Session, waiting: _Waiting) -> SignalNoises:
    feed, got = waiting
    found: SignalNoises = {}
    names = list(reference.pairs)
    for name, want in zip(names, floats.run(names, feed), strict=True):
        part = want if name == reference.pairs[name] else thinned(want)
        other = got[reference.pairs[name]]
        if want.dtype.kind in "fiu" and part.shape == other.shape:
            # The peak is that of all values: what overflows is rare.
            found[name] = dataclasses.replace(SignalNoise.of(part, other), peak=_peak(want))
    return found
