"""AdaRound: learn whether each weight is rounded up or down (arXiv:2004.10568).

A weight lies h between its lower and its upper neighbour, h = clip(1.2 sigmoid(a) - 0.1, 0, 1), and a
is learned. A loss that sets in after a while drives every h to 0 or 1; the sharper its exponent
becomes, the nearer to the middle it still pushes.

Where the clip acts there is no slope, and what brought a there pushes it on: such a weight is
decided, and never comes back. Most are soon after the loss sets in, so steps are taken for the
others only.
"""

from __future__ import annotations

import math
from typing import Any

from lowbit.config.refinement import AdaRound
from lowbit.numerics.array_api import array_namespace
from lowbit.refine.gradient import Adam

Array = Any
_WIDTH, _OVER = 1.2, 0.1
# Where the clip begins to act.
_DECIDED = math.log((1.0 + _OVER) / _OVER)
# Steps between two checks for decided weights, and how many at least make it worth to drop them.
_EVERY, _WORTH = 10, 1024


class RoundedRows:
    """Rows whose roundings are learned."""

    def __init__(
        self,
        weight: Array,
        scale: Array,
        bounds: tuple[Array, Array],
        config: AdaRound,
        rate: float,
    ) -> None:
        """Start with every weight where the float one lies."""
        xp = array_namespace(weight)
        self._xp, self._config, self._shape = xp, config, weight.shape
        low, gap = bounds[0], bounds[1] - bounds[0]
        self._low, self._gap = low, gap
        part = xp.clip(weight / scale - low, 0.0, 1.0)
        share = (part + _OVER) / _WIDTH
        flat = (-1,)
        # Of all weights: what the layer sees, and the logits of those that are decided.
        self._weights = xp.reshape(scale * low, flat)
        self._logits = xp.reshape(xp.log(share / (1.0 - share)), flat)
        # Of the open ones: where they are (``None``: all), and what their steps need.
        self._open: Array | None = None
        self._base = self._weights + 0.0
        self._gain = xp.reshape(scale * gap, flat)
        self._logit = self._logits + 0.0
        self._adam = Adam(self._logit, rate)
        self._settled = False

    def weights(self) -> Array:
        """Return the weights, part way between their neighbours."""
        xp = self._xp
        sigmoid = xp.exp(-self._logit)
        sigmoid += 1.0
        sigmoid = 1.0 / sigmoid
        share = sigmoid * _WIDTH
        share -= _OVER
        share = xp.clip(share, 0.0, 1.0)
        self._sigmoid, self._share = sigmoid, share
        now = share * self._gain
        now += self._base
        if self._open is None:
            self._weights = now
        else:
            self._weights[self._open] = now
        return xp.reshape(self._weights, self._shape)

    def step(self, gradient: Array, at: int) -> float:
        """Go one step down both losses."""
        xp, share = self._xp, self._share
        slope = xp.reshape(gradient, (-1,))
        if self._open is not None:
            slope = xp.take(slope, self._open, axis=0)
        slope *= self._gain
        loss = 0.0
        beta = self._beta(at)
        if beta is not None:
            middle = 2.0 * share
            middle -= 1.0
            away = xp.abs(middle)
            # exp and log are several times faster than a power.
            edge = xp.log(away + 1e-20)
            edge *= beta - 1.0
            edge = xp.exp(edge)
            away *= edge
            loss = self._config.reg_param * (away.shape[0] - float(xp.sum(away)))
            edge *= 2.0 * beta * self._config.reg_param
            slope -= xp.copysign(edge, middle)
        slope *= self._sigmoid
        slope *= 1.0 - self._sigmoid
        slope *= _WIDTH
        slope *= xp.astype(xp.abs(self._logit) < _DECIDED, slope.dtype)
        self._adam.step(self._logit, slope)
        if at % _EVERY == _EVERY - 1:
            self._drop_decided()
        return loss

    @property
    def settled(self) -> bool:
        """Whether every weight is decided."""
        return self._settled

    def result(self) -> Array:
        """Return each weight's nearer neighbour."""
        xp = self._xp
        if self._open is None:
            self._logits = self._logit
        else:
            self._logits[self._open] = self._logit
        up = xp.reshape(self._logits >= 0.0, self._shape)
        return self._low + xp.astype(up, self._low.dtype) * self._gap

    def _drop_decided(self) -> None:
        """Continue with the undecided weights only, if that saves enough."""
        xp = self._xp
        still = xp.abs(self._logit) < _DECIDED
        count, before = int(xp.sum(xp.astype(still, xp.int32))), self._logit.shape[0]
        self._settled = count == 0
        if self._settled or before - count < max(_WORTH, before // 10):
            return
        chosen = xp.nonzero(still)[0]
        ended = self._base + self._gain * xp.astype(self._logit > 0.0, self._gain.dtype)
        if self._open is None:
            self._weights, self._logits, self._open = ended, self._logit, chosen
        else:
            self._weights[self._open], self._logits[self._open] = ended, self._logit
            self._open = xp.take(self._open, chosen, axis=0)
        self._base, self._gain, self._logit = (
            xp.take(a, chosen, axis=0) for a in (self._base, self._gain, self._logit)
        )
        self._adam.keep(chosen)

    def _beta(self, at: int) -> float | None:
        """Return the exponent at a step: none at first, then down along a cosine."""
        config = self._config
        start = config.warm_start * config.num_iterations
        if at < start:
            return None
        first, last = config.beta_range
        part = (at - start) / max(1.0, config.num_iterations - start)
        return last + 0.5 * (first - last) * (1.0 + math.cos(math.pi * part))
