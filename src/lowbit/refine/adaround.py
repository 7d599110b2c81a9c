"""AdaRound: learn whether each weight is rounded up or down (arXiv:2004.10568).

A weight lies h between its lower and its upper neighbour, h = clip(1.2 sigmoid(a) - 0.1, 0, 1), and a
is learned. A loss that sets in after a while drives every h to 0 or 1; the sharper its exponent
becomes, the nearer to the middle it still pushes.
"""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

from lowbit.config.refine import AdaRound
from lowbit.refine.tune import Adam

Array = Any
_STRETCH, _OVER = 1.2, 0.1


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
        self._xp, self._config = xp, config
        self._low, self._gap = bounds[0], bounds[1] - bounds[0]
        self._base, self._gain = scale * self._low, scale * self._gap
        part = xp.minimum(xp.maximum(weight / scale - self._low, 0.0), 1.0)
        share = (part + _OVER) / _STRETCH
        self._logit = xp.log(share / (1.0 - share))
        self._adam = Adam(self._logit, rate)

    def weights(self) -> Array:
        """Return the weights, part way between their neighbours."""
        xp = self._xp
        self._sigmoid = 1.0 / (1.0 + xp.exp(-self._logit))
        self._share = xp.minimum(xp.maximum(self._sigmoid * _STRETCH - _OVER, 0.0), 1.0)
        return self._base + self._share * self._gain

    def step(self, gradient: Array, at: int) -> float:
        """Go one step down both losses."""
        xp, share = self._xp, self._share
        gradient *= self._gain
        loss = 0.0
        beta = self._beta(at)
        if beta is not None:
            middle = 2.0 * share - 1.0
            away = xp.abs(middle)
            # exp and log are several times faster than a power.
            edge = xp.exp((beta - 1.0) * xp.log(away + 1e-20))
            loss = self._config.reg_param * float(xp.sum(1.0 - edge * away))
            edge *= 2.0 * beta * self._config.reg_param
            gradient -= xp.copysign(edge, middle)
        slope = self._sigmoid * (_STRETCH - _STRETCH * self._sigmoid)
        slope *= xp.astype((share > 0.0) & (share < 1.0), share.dtype)
        gradient *= slope
        self._adam.step(self._logit, gradient)
        return loss

    def result(self) -> Array:
        """Return each weight's nearer neighbour."""
        xp = self._xp
        return self._low + xp.astype(self._logit >= 0.0, self._low.dtype) * self._gap

    def _beta(self, at: int) -> float | None:
        """Return the exponent at a step: none at first, then down along a cosine."""
        config = self._config
        start = config.warm_start * config.num_iterations
        if at < start:
            return None
        first, last = config.beta_range
        part = (at - start) / max(1.0, config.num_iterations - start)
        return last + 0.5 * (first - last) * (1.0 + math.cos(math.pi * part))
