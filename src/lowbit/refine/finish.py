"""Finish a tuned module: exact descent from where tuning ended, and a bias that fits.

Steps of a few samples each leave some roundings on the wrong side. Descent from there, between the
neighbours of what was tuned, sees all samples at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from lowbit.numerics.formats import FloatArray
from lowbit.refine.descent import descend
from lowbit.refine.reconstruct import Grid, exact_bias
from lowbit.refine.sights import Sums

_HELD, _SWEEPS = 0.2, 4


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Steps from the zero point, the float bias, and what the model adds for that bias."""

    steps: FloatArray
    bias: FloatArray
    added: FloatArray


@dataclasses.dataclass(frozen=True, slots=True)
class Finish:
    """Finishes one module.

    ``weight`` is what descent is held to, ``settle`` gives what a bias is once it is stored,
    ``means`` are those of patches and targets over all positions, if the bias may be set.
    """

    grid: Grid
    weight: FloatArray
    sums: Sums
    settle: Callable[[FloatArray], FloatArray]
    means: tuple[FloatArray, FloatArray] | None

    def choices(self, steps: FloatArray, bias: FloatArray) -> list[Choice]:
        """Return the tuned steps and bias, and better ones, to choose from."""
        tuned = Choice(steps, bias, self.settle(bias))
        found = [tuned, self._again(tuned)]
        if self.means is not None:
            ended = self._fitted(self._descended(steps, None), bias, self.means)
            # Storing the bias moved it a little: the weights can make up for that.
            found += [self._fitted(steps, bias, self.means), ended, self._again(ended)]
        return found

    def _again(self, choice: Choice) -> Choice:
        """Return better steps for the same bias."""
        return dataclasses.replace(choice, steps=self._descended(choice.steps, choice.added))

    def _fitted(
        self, steps: FloatArray, bias: FloatArray, means: tuple[FloatArray, FloatArray]
    ) -> Choice:
        exact = exact_bias(steps * self.grid.scale, means, bias)
        exact = bias if exact is None else exact
        return Choice(steps, exact, self.settle(exact))

    def _descended(self, steps: FloatArray, added: FloatArray | None) -> FloatArray:
        """Return better steps for a bias, or for any."""
        grid, near = self.grid, self.weight / self.grid.scale
        low, high = (np.clip(a, grid.lowest, grid.highest) for a in (np.floor(near), np.ceil(near)))
        moments = self.sums.moments(added).held_to(self.weight, _HELD)
        found: FloatArray = descend(moments, steps, grid.scale, (low, high), _SWEEPS)
        return found
