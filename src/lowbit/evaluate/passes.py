"""Both models over all samples: the figures of the outputs, exact and fused."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from lowbit.analyze.sensitivity import Example
from lowbit.evaluate.outputs import Distance, Part, find_parts
from lowbit.graph.session import Array, Feed, session
from lowbit.numerics.metrics import SignalNoise
from lowbit.parallel import ordered_map

Outputs = Mapping[str, Array]
Told = Callable[[Outputs, Outputs, "Outputs | None"], None]
"""Told what float, quantized and fused model give for a sample, in the order of the samples."""


@dataclasses.dataclass(frozen=True, slots=True)
class Passes:
    """What came of running everything."""

    outputs: Mapping[str, SignalNoise]
    parts: tuple[Part, ...]
    parted: Mapping[str, SignalNoise]
    fused: Mapping[str, SignalNoise]
    exact: Mapping[str, SignalNoise]
    """``fused`` and ``exact`` are over the same samples: all, or some where that is enough."""
    examples: tuple[Example, ...]
    count: int


def run_passes(
    reference: ir.Model,
    quantized: ir.Model,
    outputs: Sequence[str],
    feeds: Iterable[Feed],
    *,
    fused: frozenset[int],
    keep: frozenset[int],
    threads: int,
    told: Told,
) -> Passes:
    """Run every sample through both models.

    ``fused`` are the numbers of the samples to run through the fused kernels as well, ``keep`` of
    those to return.
    """
    names = list(outputs)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(
            session(reference, threads=1, optimize="all", name="the float model")
        )
        exact = stack.enter_context(session(quantized, threads=1, name="the quantized model"))
        quick = None
        if fused:
            quick = stack.enter_context(
                session(quantized, threads=1, optimize="all", name="the quantized model, fused")
            )

        def work(numbered: tuple[int, Feed]) -> tuple[Feed, Outputs, Outputs, Outputs | None]:
            number, feed = numbered
            runs = [dict(zip(names, s.run(names, feed), strict=True)) for s in (plain, exact)]
            last = None
            if quick is not None and number in fused:
                last = dict(zip(names, quick.run(names, feed), strict=True))
            return feed, runs[0], runs[1], last

        sums = _Sums()
        for feed, want, got, last in ordered_map(work, enumerate(feeds), threads):
            sums.add(want, got, last)
            if sums.count - 1 in keep:
                sums.examples.append(Example(feed, want))
            told(want, got, last)
    return sums.result()


class _Sums:
    """Figures added up over samples."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[Example] = []
        self._parts: tuple[Part, ...] = ()
        self._whole: list[Distance] = []
        self._parted: Distance | None = None
        self._any_fused = False

    def add(self, want: Outputs, got: Outputs, last: Outputs | None) -> None:
        if not self._whole:
            whole = [Part(n) for n, a in want.items() if _comparable(a, got[n])]
            self._whole = [Distance(whole) for _ in range(3)]
            self._parts = find_parts({part.output: want[part.output] for part in whole})
            self._parted = Distance(self._parts)
        self._whole[0].add(want, got)
        if last is not None:
            self._any_fused = True
            self._whole[1].add(want, last)
            self._whole[2].add(want, got)
        if self._parted is not None:
            self._parted.add(want, got)
        self.count += 1

    def result(self) -> Passes:
        whole = [d.by_name() for d in self._whole] or [{}, {}, {}]
        split = any(part.axis is not None for part in self._parts)
        return Passes(
            outputs=whole[0],
            parts=self._parts,
            parted=self._parted.by_name() if self._parted and split else {},
            fused=whole[1] if self._any_fused else {},
            exact=whole[2] if self._any_fused else {},
            examples=tuple(self.examples),
            count=self.count,
        )


def _comparable(want: Array, got: Array) -> bool:
    return want.dtype.kind in "fiu" and want.shape == got.shape
