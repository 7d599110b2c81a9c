"""Round a matrix of weights so that its product with given inputs is nearest to given outputs.

With H the second moments of the inputs and G those of outputs with inputs, the squared error of
weights V is tr(V H V') - 2 tr(V G') up to a constant. Over the integers that V may be made of it is
minimized one column at a time, all rows at once; every step is exact, so the error never rises.

Written against the array API: arrays may be NumPy's or PyTorch's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from lowbit.numerics.array_api import array_namespace, is_numpy, zeros

Array = Any
# Columns that are looked at one by one before the others of their panel learn of it, and columns of
# a panel: what all columns of a layer learn of at once.
_BLOCK = 32
_PANEL = 128
_TINY = 1e-12
# The largest share of outputs that are worth picking out.
_MOST_PICKED = 0.5


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
    """Let every input have been seen alone as well. Changes H; returns what was added to its diagonal.

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
    """Return integers between ``bounds`` that minimize the error of ``scale`` times them.

    ``start`` and ``bounds`` are groups x outputs x depth, ``scale`` broadcasts to them.
    """
    xp = array_namespace(start)
    # Columns become rows, which lie together in memory.
    codes, low, high, scales = (_columns_first(xp, a, start) for a in (start, *bounds, scale))
    inputs = moments.inputs
    error = xp.matrix_transpose(moments.outputs) - xp.matmul(inputs, codes * scales)
    gain = 1.0 / (_diagonal(xp, inputs)[:, :, None] * scales)
    depth = inputs.shape[-1]
    for _ in range(sweeps):
        moved = False
        for first in range(0, depth, _PANEL):
            panel = slice(first, min(first + _PANEL, depth))
            columns = [a[:, panel, :] for a in (codes, scales, gain, low, high)]
            change = _sweep_panel(xp, inputs[:, panel, panel], error[:, panel, :], *columns)
            some = _outputs_with(xp, change != 0)
            if some is None:
                continue
            moved = True
            error[:, :, some] -= inputs[:, :, panel] @ change[:, :, some]
        if not moved:
            break
    return xp.matrix_transpose(codes)


def _outputs_with(xp: Any, columns: Array) -> Array | slice | None:
    """Return the outputs of which any column is true: after the first sweep these are few.

    All are returned where most are, or where the array API has no way to pick some.
    """
    if not xp.any(columns):
        return None
    if not is_numpy(columns):
        return slice(None)
    some = np.flatnonzero(columns.any(axis=(0, 1)))
    return slice(None) if len(some) > _MOST_PICKED * columns.shape[2] else some


def _nearest(xp: Any, wanted: Array, low: Array, high: Array) -> Array:
    rounded = np.rint(wanted) if is_numpy(wanted) else xp.round(wanted)
    return xp.minimum(xp.maximum(rounded, low), high)


def _columns_first(xp: Any, array: Array, like: Array) -> Array:
    groups, outputs, depth = like.shape
    copy = zeros((groups, depth, outputs), like)
    copy[...] = xp.matrix_transpose(xp.broadcast_to(array, like.shape))
    return copy


def _sweep_panel(
    xp: Any,
    inputs: Array,
    error: Array,
    codes: Array,
    scales: Array,
    gain: Array,
    low: Array,
    high: Array,
) -> Array:
    """Change the codes of one panel, and return by how much the weights change."""
    error, moved = xp.asarray(error, copy=True), xp.zeros_like(codes)
    depth = codes.shape[1]
    for first in range(0, depth, _BLOCK):
        last = min(first + _BLOCK, depth)
        block, rest = slice(first, last), slice(last, depth)
        now, limits = codes[:, block, :], (low[:, block, :], high[:, block, :])
        # What each column is to be, were none before it changed. An output none of whose codes would
        # move by itself stays as it is.
        wanted = now + error[:, block, :] * gain[:, block, :]
        some = _outputs_with(xp, _nearest(xp, wanted, *limits) != now)
        if some is None:
            continue
        columns = (
            a[:, :, some] for a in (wanted, now, scales[:, block, :], gain[:, block, :], *limits)
        )
        new, weights = _sweep_block(xp, inputs[:, block, block], *columns)
        codes[:, block, some], moved[:, block, some] = new, weights
        error[:, rest, some] -= inputs[:, rest, block] @ weights
    return moved


def _sweep_block(
    xp: Any,
    inputs: Array,
    wanted: Array,
    codes: Array,
    scales: Array,
    gain: Array,
    low: Array,
    high: Array,
) -> tuple[Array, Array]:
    """Return the codes of one block, chosen column after column, and by how much the weights change."""
    new, moved = xp.zeros_like(codes), xp.zeros_like(codes)
    for j in range(codes.shape[1]):
        best = wanted[:, j, :]
        if j:
            # Columns before it have changed: that is taken off in its turn.
            before = (inputs[:, j : j + 1, :j] @ moved[:, :j, :])[:, 0, :]
            best = best - before * gain[:, j, :]
        new[:, j, :] = _nearest(xp, best, low[:, j, :], high[:, j, :])
        moved[:, j, :] = (new[:, j, :] - codes[:, j, :]) * scales[:, j, :]
    return new, moved


def _diagonal(xp: Any, matrices: Array) -> Array:
    return xp.linalg.diagonal(matrices)
