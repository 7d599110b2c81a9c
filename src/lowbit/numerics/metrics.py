"""How far two arrays are apart. Sums are kept, so that samples of any shape add up exactly."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Above this many values single precision is enough, as sums are pairwise, unless they overflow.
_LARGE = 1 << 14


@dataclasses.dataclass(frozen=True, slots=True)
class Closeness:
    """Signal, noise and agreement of a quantized tensor with its reference, over samples.

    ``peak`` is the largest magnitude in the reference, where it was taken.
    """

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    product: float = 0.0
    max_error: float = 0.0
    peak: float = 0.0

    @classmethod
    def of(cls, want: NDArray[Any], got: NDArray[Any]) -> Closeness:
        """Compare one pair of arrays."""
        a, b = np.ravel(want), np.ravel(got)
        if want.size > _LARGE:
            with np.errstate(over="ignore", invalid="ignore"):
                quick = cls._sums(a.astype(np.float32), b.astype(np.float32))
            if math.isfinite(quick.signal + quick.other + quick.noise):
                return quick
        return cls._sums(a.astype(np.float64), b.astype(np.float64))

    @classmethod
    def _sums(cls, a: NDArray[np.floating], b: NDArray[np.floating]) -> Closeness:
        # Elementwise products and pairwise sums, not dot products: a threaded BLAS called from
        # several threads at once spends its time waiting.
        with np.errstate(invalid="ignore"):
            error = a - b
        return cls(
            signal=float(np.sum(a * a)),
            noise=float(np.sum(error * error)),
            other=float(np.sum(b * b)),
            product=float(np.sum(a * b)),
            max_error=float(np.abs(error).max(initial=0.0)),
        )

    def __or__(self, more: Closeness) -> Closeness:
        """Return the closeness over the samples of both."""
        return Closeness(
            self.signal + more.signal,
            self.noise + more.noise,
            self.other + more.other,
            self.product + more.product,
            max(self.max_error, more.max_error),
            max(self.peak, more.peak),
        )

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio in decibels; infinite when equal."""
        if not math.isfinite(self.noise):
            return -math.inf
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def cosine(self) -> float:
        """Cosine similarity; 1 for two zero tensors."""
        norm = math.sqrt(self.signal * self.other)
        if norm == 0:
            return 1.0 if self.signal == self.other else 0.0
        return self.product / norm
