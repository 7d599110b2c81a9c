"""Which of two quantized models is nearer to the float one, on samples neither was made from.

The measure is the SQNR in decibels, averaged over samples, outputs and, where an
output has channels, over these: an average of logarithms weighs boxes in pixels and scores below
one alike, and one bad sample cannot outvote the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed, session
from lowbit.parallel import ordered_map

Decibels = NDArray[np.float64]

_MEMORY_FOR_OUTPUTS = 64 << 20
_MOST_CHANNELS = 512
_LOWEST, _HIGHEST = -20.0, 120.0


class Judge:
    """The float model's outputs on some samples, to hold others against."""

    def __init__(self, reference: ir.Model, feeds: Iterable[Feed]) -> None:
        """Run the float model; as many samples are kept as their outputs leave room for."""
        self._names = [tensor_name(value) for value in reference.graph.outputs]
        self._samples: list[tuple[Feed, list[Array]]] = []
        room = _MEMORY_FOR_OUTPUTS
        with session(reference, threads=1, optimize="all", name="the float model") as running:

            def work(feed: Feed) -> tuple[Feed, list[Array]]:
                # Copied: an array of onnxruntime's keeps all of its session's memory.
                return feed, [np.array(x) for x in running.run(self._names, feed)]

            for feed, outputs in ordered_map(work, iter(feeds), os.cpu_count() or 1):
                room -= sum(array.nbytes for array in outputs)
                if room < 0 and self._samples:
                    break
                self._samples.append((feed, outputs))

    def __len__(self) -> int:
        """Return how many samples it judges on."""
        return len(self._samples)

    def decibels(self, quantized: ir.Model) -> Decibels:
        """Return the mean ratio of each sample; no sample if nothing can be measured."""
        with session(quantized, threads=1, name="the quantized model") as running:

            def work(sample: tuple[Feed, list[Array]]) -> Decibels:
                feed, wanted = sample
                return _ratios(wanted, running.run(self._names, feed))

            found = list(ordered_map(work, iter(self._samples), os.cpu_count() or 1))
        return np.array([float(np.mean(ratios)) for ratios in found if len(ratios)])


def _ratios(wanted: Iterable[Array], got: Iterable[Array]) -> Decibels:
    parts = [
        _by_channel(np.asarray(a, np.float64), np.asarray(b, np.float64))
        for a, b in zip(wanted, got, strict=True)
        if a.dtype.kind == "f" and a.shape == b.shape and a.size
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def _by_channel(a: NDArray[np.float64], b: NDArray[np.float64]) -> Decibels:
    """Return the ratio of each channel that holds anything."""
    many = a.ndim >= 3 and a.shape[1] <= _MOST_CHANNELS
    axes = tuple(axis for axis in range(a.ndim) if not (many and axis == 1))
    signal = np.atleast_1d(np.square(a).sum(axis=axes))
    with np.errstate(all="ignore"):  # a broken model's outputs are as bad as can be, no error
        error = a - b
        noise = np.atleast_1d(np.square(np.where(np.isnan(error), np.inf, error)).sum(axis=axes))
        ratio = 10 * np.log10(signal / noise)
    ratio = np.where(noise == 0, _HIGHEST, ratio)
    return np.asarray(np.clip(ratio[signal > 0], _LOWEST, _HIGHEST))
