"""Perplexity of language models on the texts they are compared on: how well each next token is predicted."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from lowbit.data.inputs import InputInfo
from lowbit.data.text import Role, role_of
from lowbit.errors import DataError
from lowbit.graph.session import Array, Feed
from lowbit.numerics.formats import DoubleArray
from lowbit.numerics.metrics import log_softmax


class Perplexity(msgspec.Struct, frozen=True, kw_only=True):
    """The perplexity of both models on the same tokens."""

    float_model: float
    quantized: float
    tokens: int

    def describe(self) -> str:
        """Return it in words: ``perplexity 3.10 (float 3.06)``."""
        return f"perplexity {self.quantized:.4g} (float {self.float_model:.4g})"


class PerplexitySums:
    """Log-likelihoods of tokens, added up over samples."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._float = self._quantized = self._same = 0.0
        self._tokens = 0

    def add(self, feed: Feed, want: Array, got: Array) -> None:
        """Add a sample's logits, if its feed has the tokens they are for."""
        tokens = _input_of(feed, "tokens", want)
        if tokens is None or want.ndim != 3 or want.shape[1] < 2:
            return
        mask = _input_of(feed, "mask", want)
        kept = np.ones(tokens.shape, bool) if mask is None else mask != 0
        a, b = (log_softmax(x) for x in (want, got))
        counted = kept[:, 1:] & kept[:, :-1]
        self._float += float(_of(a[:, :-1], tokens[:, 1:])[counted].sum())
        self._quantized += float(_of(b[:, :-1], tokens[:, 1:])[counted].sum())
        self._same += float(_of(a[:, :-1], tokens[:, :-1])[counted].sum())
        self._tokens += int(counted.sum())

    def result(self) -> Perplexity | None:
        """Return both perplexities; ``None`` unless the float model predicts next tokens.

        A model that fills in masked tokens predicts those it is given.
        """
        if not self._tokens or self._float <= self._same:
            return None
        return Perplexity(
            float_model=math.exp(-self._float / self._tokens),
            quantized=math.exp(min(-self._quantized / self._tokens, 700.0)),
            tokens=self._tokens,
        )


def _input_of(feed: Feed, role: Role, logits: Array) -> NDArray[np.int64] | None:
    """Return the input of a role, one whole number for each position of the logits."""
    for name, array in feed.items():
        if array.shape != logits.shape[:2] or array.dtype.kind not in "iub":
            continue
        try:
            known = role_of(InputInfo(name, array.dtype, None))
        except DataError:
            continue
        if known == role and array.min(initial=0) >= 0 and array.max(initial=0) < logits.shape[-1]:
            return np.asarray(array, np.int64)
    return None


def _of(log_p: DoubleArray, tokens: NDArray[np.int64]) -> DoubleArray:
    return np.asarray(np.take_along_axis(log_p, tokens[:, :, None], axis=2)[:, :, 0])
