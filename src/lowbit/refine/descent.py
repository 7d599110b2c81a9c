"""Round a matrix of weights so that its product with given inputs is nearest to given outputs.

With H the second moments of the inputs and G those of outputs with inputs, the squared error of
weights V is tr(V H V') - 2 tr(V G') up to a constant. Over the two integers that each weight may become
it is minimized one column at a time, all rows at once; every step is exact, so the error never rises.

Written against the array API: arrays may be NumPy's or PyTorch's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowbit.numerics.array_api import array_namespace, is_numpy, zeros

Array = Any
# Columns that are looked at one by one before the others of their panel learn of it, and columns of
# a panel: what all columns of a layer learn of at once.
_BLOCK = 32
_PANEL = 128
_TINY = 1e-12


@dataclasses.dataclass(frozen=True, slots=True)
class Moments:
    """H (groups x depth x depth) and G (groups x outputs x depth)."""

    inputs: Array
    outputs: Array

    def held_to(self, weight: Array, ridge: float) -> Moments:
        """Return the moments as if ``weight`` had been seen to be right on every input alone."""
        inputs = array_namespace(self.inputs).asarray(self.inputs, copy=True)
        extra = add_ridge(inputs, ridge)
        return Moments(inputs, self.outputs + extra[:, None, :] * weight)


def add_ridge(inputs: Array, ridge: float) -> Array:
    """Add a ridge to H (in place); return what was added to its diagonal.

    That times the weights that were right is to be added to G.
    """
    xp = array_namespace(inputs)
    power = _diagonal(xp, inputs)
    # An input that never varies decides nothing: its weights stay where they are.
    floor = xp.max(power) * 1e-6 + _TINY
    extra = ridge * power + floor
    if is_numpy(inputs):
        np.einsum("gjj->gj", inputs)[...] += extra
    else:
        for j in range(inputs.shape[-1]):  # a diagonal matrix would be as large as the moments
            inputs[:, j, j] += extra[:, j]
    return extra


def descend(
    moments: Moments, start: Array, scale: Array, bounds: tuple[Array, Array], sweeps: int
) -> Array:
    """Return which of two neighbours each weight becomes, for the least error of ``scale`` times them.

    ``start`` and ``bounds``, the lower and the upper neighbour, are groups x outputs x depth, ``scale``
    broadcasts to them. There are at most so many sweeps, fewer for an output in which nothing moves.
    """
    xp = array_namespace(start)
    # Columns become rows, which lie together in memory.
    codes, low, high, scales = (_columns_first(xp, a, start) for a in (start, *bounds, scale))
    inputs = moments.inputs
    error = xp.matrix_transpose(moments.outputs) - xp.matmul(inputs, codes * scales)
    left = _Outputs(
        xp.arange(codes.shape[2]), error, (high - codes) * scales, (low - codes) * scales
    )
    done = []
    for _ in range(sweeps):
        more = _sweep(xp, inputs, left)
        if not xp.all(more):
            goes_on, ends = (xp.nonzero(some)[0] for some in (more, ~more))
            done.append(left.some(xp, ends))
            left = left.some(xp, goes_on)
        if not left.numbers.shape[0]:
            break
    up = _joined(xp, [*done, left])
    return xp.matrix_transpose(high - _rounded(xp, up / scales))


@dataclasses.dataclass(frozen=True, slots=True)
class _Outputs:
    """Some outputs of a layer, by their numbers.

    ``error`` is what their weights leave of G; ``up`` and ``down`` by how much each weight would change
    to become its upper and its lower neighbour.
    """

    numbers: Array
    error: Array
    up: Array
    down: Array

    def some(self, xp: Any, at: Array) -> _Outputs:
        """Return copies of some of them."""
        arrays = (xp.take(a, at, axis=2) for a in (self.error, self.up, self.down))
        return _Outputs(xp.take(self.numbers, at), *arrays)


def _joined(xp: Any, parts: Sequence[_Outputs]) -> Array:
    """Return how far all outputs are from their upper neighbours, in order."""
    if len(parts) == 1:
        return parts[0].up
    order = xp.argsort(xp.concat([part.numbers for part in parts]))
    return xp.take(xp.concat([part.up for part in parts], axis=2), order, axis=2)


def _sweep(xp: Any, inputs: Array, outputs: _Outputs) -> Array:
    """Go over all columns once, and return in which outputs any weight moved."""
    error, depth = outputs.error, inputs.shape[-1]
    moved = xp.zeros_like(outputs.numbers) != 0
    for first in range(0, depth, _PANEL):
        panel = slice(first, min(first + _PANEL, depth))
        up, down = outputs.up[:, panel, :], outputs.down[:, panel, :]
        rest = xp.asarray(error[:, panel, :], copy=True)
        change = _sweep_panel(xp, inputs[:, panel, panel], rest, up, down)
        moves = xp.any(change != 0, axis=(0, 1))
        if not xp.any(moves):
            continue
        moved = moved | moves
        up -= change
        down -= change
        error -= inputs[:, :, panel] @ change
    return moved


def _rounded(xp: Any, array: Array) -> Array:
    return np.rint(array) if is_numpy(array) else xp.round(array)


def _columns_first(xp: Any, array: Array, like: Array) -> Array:
    groups, outputs, depth = like.shape
    copy = zeros((groups, depth, outputs), like)
    copy[...] = xp.matrix_transpose(xp.broadcast_to(array, like.shape))
    return copy


def _sweep_panel(xp: Any, inputs: Array, error: Array, up: Array, down: Array) -> Array:
    """Return by how much the weights of one panel change. Changes ``error``."""
    moved, depth = xp.zeros_like(error), error.shape[1]
    # Up is better than down where the error is above this, each weight by itself.
    even = 0.5 * _diagonal(xp, inputs)[:, :, None] * (up + down)
    for first in range(0, depth, _BLOCK):
        last = min(first + _BLOCK, depth)
        block, rest = slice(first, last), slice(last, depth)
        preference = error[:, block, :] - even[:, block, :]
        change = _sweep_block(
            xp, inputs[:, block, block], preference, up[:, block, :], down[:, block, :]
        )
        moved[:, block, :] = change
        error[:, rest, :] -= inputs[:, rest, block] @ change
    return moved


def _sweep_block(xp: Any, inputs: Array, preference: Array, up: Array, down: Array) -> Array:
    """Return by how much the weights of one block change, chosen column after column."""
    if is_numpy(preference) and len(preference) == 1:
        return _sweep_matrix(inputs[0], preference[0], up[0], down[0])[None]
    moved = xp.zeros_like(preference)
    for j in range(moved.shape[1]):
        better = preference[:, j, :]
        if j:
            # Columns before it have changed: that is subtracted in its turn.
            better = better - (inputs[:, j : j + 1, :j] @ moved[:, :j, :])[:, 0, :]
        moved[:, j, :] = xp.where(better > 0, up[:, j, :], down[:, j, :])
    return moved


def _sweep_matrix(inputs: Array, preference: Array, up: Array, down: Array) -> Array:
    """Return the same for one group, where calls take longer than what they compute: as few as can be."""
    moved = np.array(down)
    before, rises = np.empty_like(moved[0]), np.empty(len(moved[0]), bool)
    for j, (row, wanted, higher, move) in enumerate(
        zip(inputs, preference, up, moved, strict=True)
    ):
        np.dot(row[:j], moved[:j], before)
        np.greater(wanted, before, rises)
        np.copyto(move, higher, where=rises)
    return moved


def _diagonal(xp: Any, matrices: Array) -> Array:
    return xp.linalg.diagonal(matrices)
