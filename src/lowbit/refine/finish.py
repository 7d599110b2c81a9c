"""Finish a tuned layer: exact descent from where tuning ended, and a bias that fits.

Iterations on a few samples each leave some roundings on the wrong side. Descent from there, between
the neighbours of what was tuned, sees all samples at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from lowbit.numerics.formats import FloatArray
from lowbit.refine.descent import descend
from lowbit.refine.reconstruct import Grid, exact_bias
from lowbit.refine.samples import Sums

_RIDGE, _SWEEPS = 0.2, 4


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """Codes, the float bias, and what the model adds once that bias is stored."""

    codes: FloatArray
    bias: FloatArray
    added: FloatArray


@dataclasses.dataclass(frozen=True, slots=True)
class Finish:
    """Finishes one layer.

    ``weight`` is what descent is held to, ``settle`` gives what a bias is once it is stored,
    ``means`` are those of patches and targets over all positions, if the bias may be set.
    """

    grid: Grid
    weight: FloatArray
    sums: Sums
    settle: Callable[[FloatArray], FloatArray]
    means: tuple[FloatArray, FloatArray] | None

    def candidates(self, codes: FloatArray, bias: FloatArray) -> list[Candidate]:
        """Return the tuned codes and bias, and better ones, to choose from."""
        tuned = Candidate(codes, bias, self.settle(bias))
        found = [tuned, self._again(tuned)]
        if self.means is not None:
            ended = self._fitted(self._descended(codes, None), bias, self.means)
            # Storing the bias moved it a little: the weights can make up for that.
            found += [self._fitted(codes, bias, self.means), ended, self._again(ended)]
        return found

    def _again(self, candidate: Candidate) -> Candidate:
        """Return better codes for the same bias."""
        codes = self._descended(candidate.codes, candidate.added)
        return dataclasses.replace(candidate, codes=codes)

    def _fitted(
        self, codes: FloatArray, bias: FloatArray, means: tuple[FloatArray, FloatArray]
    ) -> Candidate:
        exact = exact_bias(codes * self.grid.scale, means, bias)
        exact = bias if exact is None else exact
        return Candidate(codes, exact, self.settle(exact))

    def _descended(self, codes: FloatArray, added: FloatArray | None) -> FloatArray:
        """Return better codes for a bias, or for any."""
        grid, near = self.grid, self.weight / self.grid.scale
        low, high = (np.clip(a, grid.lowest, grid.highest) for a in (np.floor(near), np.ceil(near)))
        moments = self.sums.moments(added).held_to(self.weight, _RIDGE)
        found: FloatArray = descend(moments, codes, grid.scale, (low, high), _SWEEPS)
        return found
