"""Run reference and quantized model on the same samples and measure how far they are apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from lowbit.calibrate.collect import bounded_map
from lowbit.errors import ModelError, did_you_mean
from lowbit.graph.names import tensor_name
from lowbit.graph.session import Array, Feed, session
from lowbit.numerics.metrics import Closeness

Closenesses = dict[str, Closeness]


def compare_outputs(
    reference: ir.Model, quantized: ir.Model, feeds: Iterable[Feed], *, threads: int
) -> Closenesses:
    """Return the closeness of every output of the two models."""
    names = [tensor_name(value) for value in reference.graph.outputs]
    have = [tensor_name(value) for value in quantized.graph.outputs]
    for name in names:
        if name not in have:
            raise ModelError(
                f"the quantized model has no output {name!r}{did_you_mean(name, have)} "
                f"(it has {', '.join(have)}); is it made from this float model?"
            )
    pairs = {name: name for name in names}
    return compare_tensors(reference, quantized, pairs, feeds, threads=threads)


def compare_tensors(
    reference: ir.Model,
    quantized: ir.Model,
    pairs: Mapping[str, str],
    feeds: Iterable[Feed],
    *,
    threads: int,
) -> Closenesses:
    """Return the closeness of tensors, given by name in the reference: name in the other."""
    if not pairs:  # onnxruntime takes an empty list of names for all outputs
        return {}
    wanted, others = list(pairs), list(pairs.values())
    total: Closenesses = {}
    lock = threading.Lock()
    with (
        session(reference, wanted, threads=1, name="the float model") as a,
        session(quantized, others, threads=1, name="the quantized model") as b,
    ):

        def work(feed: Feed) -> int:
            found = _measure(wanted, a.run(wanted, feed), b.run(others, feed))
            with lock:
                for name, closeness in found.items():
                    total[name] = total[name] | closeness if name in total else closeness
            return 0

        for _ in bounded_map(work, iter(feeds), threads):
            pass
    return {name: total[name] for name in wanted if name in total}


def _measure(names: Sequence[str], want: Sequence[Array], got: Sequence[Array]) -> Closenesses:
    found = {}
    for name, x, y in zip(names, want, got, strict=True):
        if x.dtype.kind == "f" and x.shape == y.shape:
            found[name] = Closeness.of(x, y)
    return found


def layer_pairs(quantized: ir.Model, names: Iterable[str]) -> dict[str, str]:
    """Return, for tensors of the float model, where the quantized model has them dequantized."""
    have = set(ir.convenience.create_value_mapping(quantized.graph))
    suffix: Callable[[str], str] = lambda name: f"{name}_DequantizeLinear_Output"  # noqa: E731
    return {name: suffix(name) for name in names if suffix(name) in have}
