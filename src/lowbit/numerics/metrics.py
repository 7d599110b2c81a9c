"""Metrics: the difference of two arrays, or of the outputs of two models.

Sums are kept, so that samples of any shape add up exactly. Nothing here knows about files or graphs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import DoubleArray

# Above this many values single precision is enough, as sums are pairwise, unless they overflow.
_LARGE = 1 << 14


def without_masked(
    want: NDArray[np.floating], got: NDArray[np.floating]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return both with zeros where they are the same infinity or both no number.

    An attention mask that is an output, or a class that is masked out, is neither signal nor noise.
    """
    special = ~np.isfinite(want)
    if not special.any():
        return want, got
    same = special & ((want == got) | (np.isnan(want) & np.isnan(got)))
    return np.where(same, 0, want), np.where(same, 0, got)


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers in decibels; infinite without noise."""
    if not math.isfinite(noise):
        return -math.inf
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class SignalNoise:
    """Signal, noise and agreement of a quantized tensor with its reference, over samples.

    ``largest`` is the largest magnitude in the reference, where it was taken.
    """

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    product: float = 0.0
    max_error: float = 0.0
    largest: float = 0.0

    @classmethod
    def of(cls, want: NDArray[Any], got: NDArray[Any]) -> SignalNoise:
        """Compare one pair of arrays; in single precision where they are large."""
        if want.size > _LARGE:
            with np.errstate(over="ignore", invalid="ignore"):
                quick = cls._sums(want, got, np.float32)
            if math.isfinite(quick.signal + quick.other + quick.noise):
                return quick
        return cls.exactly(want, got)

    @classmethod
    def exactly(cls, want: NDArray[Any], got: NDArray[Any]) -> SignalNoise:
        """Compare one pair of arrays in double precision."""
        return cls._sums(want, got, np.float64)

    @classmethod
    def _sums(cls, want: NDArray[Any], got: NDArray[Any], dtype: type[np.floating]) -> SignalNoise:
        # Elementwise products and pairwise sums, not dot products: a threaded BLAS called from
        # several threads at once spends its time waiting.
        a, b = without_masked(np.ravel(want).astype(dtype), np.ravel(got).astype(dtype))
        with np.errstate(invalid="ignore"):
            error = a - b
            return cls(
                signal=float(np.sum(a * a)),
                noise=float(np.sum(error * error)),
                other=float(np.sum(b * b)),
                product=float(np.sum(a * b)),
                max_error=float(np.abs(error).max(initial=0.0)),
            )

    def __or__(self, more: SignalNoise) -> SignalNoise:
        """Return the figures over the samples of both."""
        return SignalNoise(
            self.signal + more.signal,
            self.noise + more.noise,
            self.other + more.other,
            self.product + more.product,
            max(self.max_error, more.max_error),
            max(self.largest, more.largest),
        )

    @property
    def sqnr_db(self) -> float:
        """SQNR in decibels; infinite when equal."""
        return decibels(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        """Cosine similarity; 1 for two zero tensors."""
        norm = math.sqrt(self.signal * self.other)
        if norm == 0:
            return 1.0 if self.signal == self.other else 0.0
        return self.product / norm


_MOST_CHANNELS = 512
_LOWEST_DB, _HIGHEST_DB = -20.0, 120.0


def channel_decibels(want: NDArray[Any], got: NDArray[Any]) -> DoubleArray:
    """Return the SQNR of each channel that holds anything, within bounds that can be averaged.

    An output of two axes, or of very many channels, counts as one channel.
    """
    a, b = np.asarray(want, np.float64), np.asarray(got, np.float64)
    axes, _ = channel_axes(a.ndim, a.shape[1] if a.ndim > 1 else None)
    signal = np.atleast_1d(np.square(a).sum(axis=axes))
    with np.errstate(all="ignore"):  # a broken model's outputs are as bad as can be, no error
        error = a - b
        noise = np.atleast_1d(np.square(np.where(np.isnan(error), np.inf, error)).sum(axis=axes))
        ratio = 10 * np.log10(signal / noise)
    ratio = np.where(noise == 0, _HIGHEST_DB, ratio)
    return np.asarray(np.clip(ratio[signal > 0], _LOWEST_DB, _HIGHEST_DB))


def channel_axes(rank: int, channels: int | None) -> tuple[tuple[int, ...], int]:
    """Return the axes of an output that one figure is taken over, and how many figures it has."""
    many = rank >= 3 and channels is not None and channels <= _MOST_CHANNELS
    axes = tuple(axis for axis in range(rank) if not (many and axis == 1))
    return axes, (channels or 1) if many else 1


def softmax(logits: NDArray[Any]) -> DoubleArray:
    """Return the probabilities of logits along the last axis."""
    z = np.asarray(logits, np.float64)
    powers = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def divergence(want: NDArray[Any], got: NDArray[Any]) -> DoubleArray:
    """Return the KL divergence of each row of logits from that of the float model, in nats."""
    log_p, log_q = (log_softmax(z) for z in (want, got))
    p = np.exp(log_p)
    with np.errstate(invalid="ignore"):  # a class that is masked out, with a logit of -inf
        return np.asarray(np.sum(np.where(p > 0, p * (log_p - log_q), 0), axis=-1))


def log_softmax(logits: NDArray[Any]) -> DoubleArray:
    """Return the logarithms of the probabilities of logits along the last axis."""
    z = np.asarray(logits, np.float64)
    largest = z.max(axis=-1, keepdims=True)
    return np.asarray(z - (largest + np.log(np.exp(z - largest).sum(axis=-1, keepdims=True))))


def binary_divergence(want: NDArray[Any], got: NDArray[Any]) -> DoubleArray:
    """Return the KL divergence of the independent labels of each row of logits, summed, in nats."""
    a, b = without_masked(np.asarray(want, np.float64), np.asarray(got, np.float64))
    p = 1 / (1 + np.exp(-np.clip(a, -700, 700)))
    # p log(p/q) + (1-p) log((1-p)/(1-q)) by way of softplus, which does not overflow.
    return np.asarray(np.sum(p * (a - b) + np.logaddexp(0, b) - np.logaddexp(0, a), axis=-1))


# Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment" (2004), section III.C.
_SIGMA, _RADIUS = 1.5, 5
_K1, _K2 = 0.01, 0.03
_WINDOW = 2 * _RADIUS + 1
_MOST_COLOURS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Similarity:
    """The figures of one pair; ``ssim`` is not a number where the arrays are too small for it."""

    cosine: float
    l2: float
    psnr: float
    ssim: float


def similarity(want: NDArray[Any], got: NDArray[Any], peak: float | None = None) -> Similarity:
    """Compare two arrays of one shape.

    ``peak`` is the span of possible values: 255 for images of 8 bits. If it is not given it is
    that of ``want``, its largest less its smallest value.
    """
    a, b = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"arrays of shapes {a.shape} and {b.shape} cannot be compared")
    if peak is None:
        peak = float(a.max() - a.min()) if a.size else 0.0
    return Similarity(cosine(a, b), l2(a, b), psnr(a, b, peak), ssim(a, b, peak))


def cosine(a: DoubleArray, b: DoubleArray) -> float:
    """Return the cosine of the angle between two arrays; 1 if both are zero."""
    return SignalNoise.exactly(a, b).cosine


def l2(a: DoubleArray, b: DoubleArray) -> float:
    """Return the Euclidean distance."""
    return math.sqrt(SignalNoise.exactly(a, b).noise)


def psnr(a: DoubleArray, b: DoubleArray, peak: float) -> float:
    """Return the peak SQNR in decibels; infinite for equal arrays."""
    return decibels(peak * peak * a.size, SignalNoise.exactly(a, b).noise)


def ssim(a: DoubleArray, b: DoubleArray, peak: float) -> float:
    """Return the mean structural similarity, with a Gaussian window of 11 and sigma 1.5.

    The window slides over the two axes of an image: the last two, or the two before it where the
    last one holds colours. A single row of numbers has a window of one axis. The mean is
    over all windows that lie inside and all images of the array.
    """
    axes = _image_axes(a.shape)
    if not axes or not np.isfinite(peak):
        return math.nan
    if peak == 0:
        return 1.0 if np.array_equal(a, b) else math.nan
    c1, c2 = (_K1 * peak) ** 2, (_K2 * peak) ** 2
    mean_a, mean_b = _blurred(a, axes), _blurred(b, axes)
    variance_a = _blurred(a * a, axes) - mean_a**2
    variance_b = _blurred(b * b, axes) - mean_b**2
    covariance = _blurred(a * b, axes) - mean_a * mean_b
    alike = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    most = (mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2)
    return float(np.mean(alike / most))


def _image_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes a window slides over; none where it does not fit."""
    rank = len(shape)
    if rank >= 3 and shape[-1] <= _MOST_COLOURS and min(shape[-3:-1]) >= _WINDOW:
        return (rank - 3, rank - 2)
    if rank >= 2 and min(shape[-2:]) >= _WINDOW:
        return (rank - 2, rank - 1)
    is_row = rank >= 1 and shape[-1] >= _WINDOW and math.prod(shape[:-1]) == 1
    return (rank - 1,) if is_row else ()


def _blurred(x: DoubleArray, axes: tuple[int, ...]) -> DoubleArray:
    """Return the Gaussian average around each position whose window lies inside."""
    offsets = np.arange(-_RADIUS, _RADIUS + 1)
    window = np.exp(-0.5 * (offsets / _SIGMA) ** 2)
    window /= window.sum()
    for axis in axes:
        x = np.lib.stride_tricks.sliding_window_view(x, _WINDOW, axis) @ window
    return x


Outputs: TypeAlias = Sequence[Sequence[NDArray[Any]]]
"""Of each sample, its outputs."""

Metric: TypeAlias = Callable[[Outputs, Outputs], float]
# Decibels of equal arrays must be finite to be averaged.
_LEAST = 1e-10


def _mean(of_pair: Callable[[DoubleArray, DoubleArray], float]) -> Metric:
    def distance(want: Outputs, got: Outputs) -> float:
        pairs = [
            of_pair(np.asarray(a, np.float64), np.asarray(b, np.float64))
            for wanted, found in zip(want, got, strict=True)
            for a, b in zip(wanted, found, strict=True)
        ]
        return float(np.mean(pairs)) if pairs else 0.0

    return distance


def _kl(a: DoubleArray, b: DoubleArray) -> float:
    """Return the divergence of arrays as distributions, moved up to be nowhere below zero."""
    p, q = (_as_distribution(x.reshape(-1)) for x in (a, b))
    return float(np.sum(p * np.log((p + _LEAST) / (q + _LEAST))))


def _as_distribution(x: DoubleArray) -> DoubleArray:
    x = x - min(float(x.min(initial=0.0)), 0.0)
    total = float(x.sum())
    return x / total if total > 0 else np.full(x.shape, 1 / max(x.size, 1))


def _sqnr(a: DoubleArray, b: DoubleArray) -> float:
    return _negative_decibels(float(np.mean(a * a)), a, b)


def _psnr(a: DoubleArray, b: DoubleArray) -> float:
    return _negative_decibels(float(np.abs(a).max(initial=0.0)) ** 2, a, b)


def _negative_decibels(signal: float, a: DoubleArray, b: DoubleArray) -> float:
    noise = float(np.mean((a - b) ** 2))
    return -decibels(max(signal, _LEAST), max(noise, _LEAST))


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
