"""Runs variants of a quantized model quickly: from a point before the change, on kept values.

A change to one quantizer leaves everything before it as it was. The switched model is cut at a few
places; the values that cross a cut are computed once for each sample, with everything quantized
and with everything in float, and a variant runs from the last cut before its change.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from lowbit.analyze.switches import Switched
from lowbit.evaluate.outputs import Distance, Part
from lowbit.graph.session import Array, Feed
from lowbit.graph.submodels import Stretch, open_stretches
from lowbit.parallel import ordered_map

Base = Literal["float", "quantized"]
Watch = Callable[[Mapping[str, Array], Mapping[str, Array]], None]
"""Shown the values of a sample, all in float and all quantized."""

_BASES: tuple[Base, ...] = ("float", "quantized")
_PIECES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """What differs from a base: the inputs to set, and the place of the first node concerned."""

    base: Base
    changes: Mapping[str, Array]
    place: int


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One sample: what is fed, and what the float model gives for it."""

    feed: Feed
    want: Mapping[str, Array]


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """What crosses the cuts and what comes out, by base, and what should come out."""

    values: Mapping[Base, Mapping[str, Array]]
    want: Mapping[str, Array]


class Harness:
    """Measures how far variants are from the float reference, on a few samples."""

    def __init__(
        self,
        stretches: Sequence[Stretch],
        switches: Sequence[str],
        parts: Sequence[Part],
        threads: int,
    ) -> None:
        self._stretches = stretches
        self._off = {name: np.array(False) for name in switches}
        self._parts = parts
        self._outputs = list(dict.fromkeys(part.output for part in parts))
        self._threads = threads
        self._samples: list[_Kept] = []

    def load(self, examples: Sequence[Example], watch: Watch) -> None:
        """Run both bases on the samples, show all values, and keep what crosses the cuts."""
        whole = self._stretches[0]
        names = whole.session.outputs
        kept = {name for s in self._stretches for name in s.inputs} | set(self._outputs)
        for example in examples:
            values: dict[Base, Mapping[str, Array]] = {}
            for base in _BASES:
                feed = {**example.feed, **(self._off if base == "float" else {})}
                arrays = whole.session.run(names, feed)
                values[base] = {**example.feed, **dict(zip(names, arrays, strict=True))}
            watch(values["float"], values["quantized"])
            crossing: dict[Base, Mapping[str, Array]] = {
                base: {k: v for k, v in values[base].items() if k in kept} for base in _BASES
            }
            self._samples.append(_Kept(crossing, example.want))

    def noise(self, variants: Sequence[Variant], samples: int) -> list[float]:
        """Return the noise of each variant as a share of the signal, over the first samples."""
        chosen = self._samples[:samples]
        jobs = ((variant, kept) for variant in variants for kept in chosen)
        results = ordered_map(lambda job: self._run(*job), jobs, self._threads)
        totals = []
        for _ in variants:
            distance = Distance(self._parts)
            for kept in chosen:
                distance.add(kept.want, next(results))
            totals.append(distance.noise)
        return totals

    def noise_of(self, base: Base, samples: int) -> float:
        """Return the noise of a base over the first samples."""
        distance = Distance(self._parts)
        for kept in self._samples[:samples]:
            distance.add(kept.want, kept.values[base])
        return distance.noise

    def share(self, place: int) -> float:
        """Return which share of the model runs for a change at a place."""
        return self._stretch(place).share

    def _stretch(self, place: int) -> Stretch:
        return [s for s in self._stretches if s.start <= place][-1]

    def _run(self, variant: Variant, kept: _Kept) -> dict[str, Array]:
        stretch = self._stretch(variant.place)
        values = kept.values[variant.base]
        feed = {name: values[name] for name in stretch.inputs}
        settings = {**(self._off if variant.base == "float" else {}), **variant.changes}
        feed |= {name: value for name, value in settings.items() if name in stretch.settings}
        return dict(zip(self._outputs, stretch.session.run(self._outputs, feed), strict=True))


@contextlib.contextmanager
def open_harness(
    switched: Switched, parts: Sequence[Part], watched: Sequence[str], threads: int
) -> Iterator[Harness]:
    """Yield a harness without samples; its sessions end with it."""
    switches = [knobs.switch for knobs in switched.knobs.values()]
    name = "the model with switches"
    with open_stretches(switched.model, _PIECES, watched, name) as stretches:
        yield Harness(stretches, switches, parts, threads)
