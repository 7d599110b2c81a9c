"""Run reference and quantized model on the same samples and measure how far they are apart."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from lowbit.calibrate.collect import bounded_map, thinned
from lowbit.errors import ModelError, did_you_mean
from lowbit.graph.names import tensor_name
from lowbit.graph.session import Array, Feed, Session, session
from lowbit.numerics.metrics import Closeness

Closenesses = dict[str, Closeness]


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
) -> list[Closenesses]:
    """Return the closeness of the tensors of each reference, from one quantized pass."""
    others = list(dict.fromkeys(b for r in references for b in r.pairs.values()))
    totals: list[Closenesses] = [{} for _ in references]
    with contextlib.ExitStack() as stack:
        floats = [
            stack.enter_context(
                session(r.model, list(r.pairs), threads=1, optimise="all", name="the float model")
            )
            for r in references
        ]
        low = stack.enter_context(session(quantized, others, threads=1, name="the quantized model"))

        def work(feed: Feed) -> list[Closenesses]:
            got = dict(zip(others, low.run(others, feed), strict=True))
            return [_measure(r, f, feed, got) for r, f in zip(references, floats, strict=True)]

        for found in bounded_map(work, iter(feeds), threads):
            for total, part in zip(totals, found, strict=True):
                for name, closeness in part.items():
                    total[name] = total[name] | closeness if name in total else closeness
    return totals


def _peak(values: Array) -> float:
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def _measure(
    reference: Reference, floats: Session, feed: Feed, got: Mapping[str, Array]
) -> Closenesses:
    found: Closenesses = {}
    names = list(reference.pairs)
    if not names:  # onnxruntime takes an empty list of names for all outputs
        return found
    for name, want in zip(names, floats.run(names, feed), strict=True):
        other = got[reference.pairs[name]]
        if want.dtype.kind in "fiu" and want.shape == other.shape:
            inner = name != reference.pairs[name]
            pair = (thinned(want), thinned(other)) if inner else (want, other)
            # The peak is that of all values: what overflows is rare.
            found[name] = dataclasses.replace(Closeness.of(*pair), peak=_peak(want))
    return found
