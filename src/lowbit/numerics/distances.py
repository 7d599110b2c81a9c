"""How far the outputs of a model are from those of another, over samples: lower is nearer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.similarity import cosine, l2

Outputs: TypeAlias = Sequence[Sequence[NDArray[Any]]]
"""Of each sample, its outputs."""

Metric: TypeAlias = Callable[[Outputs, Outputs], float]
_Doubles: TypeAlias = NDArray[np.float64]
# Decibels of equal arrays must be finite to be averaged.
_LEAST = 1e-10


def _mean(of_pair: Callable[[_Doubles, _Doubles], float]) -> Metric:
    def distance(want: Outputs, got: Outputs) -> float:
        pairs = [
            of_pair(np.asarray(a, np.float64), np.asarray(b, np.float64))
            for wanted, found in zip(want, got, strict=True)
            for a, b in zip(wanted, found, strict=True)
        ]
        return float(np.mean(pairs)) if pairs else 0.0

    return distance


def _kl(a: _Doubles, b: _Doubles) -> float:
    """Return the divergence of arrays as distributions, moved up to be nowhere below zero."""
    p, q = (_as_distribution(x.reshape(-1)) for x in (a, b))
    return float(np.sum(p * np.log((p + _LEAST) / (q + _LEAST))))


def _as_distribution(x: _Doubles) -> _Doubles:
    x = x - min(float(x.min(initial=0.0)), 0.0)
    total = float(x.sum())
    return x / total if total > 0 else np.full(x.shape, 1 / max(x.size, 1))


def _sqnr(a: _Doubles, b: _Doubles) -> float:
    return _negative_decibels(float(np.mean(a * a)), a, b)


def _psnr(a: _Doubles, b: _Doubles) -> float:
    return _negative_decibels(float(np.abs(a).max(initial=0.0)) ** 2, a, b)


def _negative_decibels(signal: float, a: _Doubles, b: _Doubles) -> float:
    noise = float(np.mean((a - b) ** 2))
    return -10 * math.log10(max(signal, _LEAST) / max(noise, _LEAST))


DISTANCES: Mapping[str, Metric] = MappingProxyType(
    {
        "l2": _mean(l2),
        "kl": _mean(_kl),
        "cosine": _mean(lambda a, b: 1 - cosine(a, b)),
        "sqnr": _mean(_sqnr),
        "psnr": _mean(_psnr),
    }
)
"""By name; each the mean over samples and outputs."""
