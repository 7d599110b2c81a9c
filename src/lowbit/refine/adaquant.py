"""AdaQuant: tune weights through their rounding, as if it were not there (arXiv:2006.10518)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

from lowbit.refine.tune import Adam

Array = Any
Rounding = Callable[[Array], Array]
"""Gives the value that a weight becomes by being stored."""


class TunedRows:
    """Rows of float weights that the layer sees rounded."""

    def __init__(self, weight: Array, rounding: Rounding, rate: float) -> None:
        """Start from the float weights."""
        self._weight, self._rounding = weight + 0.0, rounding
        self._adam = Adam(self._weight, rate)

    def weights(self) -> Array:
        """Return the weights, rounded."""
        return self._rounding(self._weight)

    def step(self, gradient: Array, at: int) -> float:
        """Go one step."""
        del at
        self._adam.step(self._weight, gradient)
        return 0.0

    @property
    def settled(self) -> bool:
        """Never: every step moves every weight."""
        return False

    def result(self) -> Array:
        """Return the tuned weights, not rounded."""
        return self._weight


def to_steps(scale: Array, limits: tuple[Array, Array]) -> Rounding:
    """Return the rounding to integer steps of ``scale`` within ``limits``."""

    def rounding(weight: Array) -> Array:
        xp = array_namespace(weight)
        steps = xp.round(weight / scale)
        steps = xp.minimum(xp.maximum(steps, limits[0]), limits[1])
        steps *= scale
        return steps

    return rounding
