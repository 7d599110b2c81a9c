"""Round a matrix of weights so that its product with given inputs is nearest to given outputs.

With H the second moments of the inputs and G those of outputs with inputs, the squared error of
weights V is tr(V H V') - 2 tr(V G') up to a constant. Over the integers that V may be made of it is
minimized one column at a time, all rows at once; every step is exact, so the error never rises.

Written against the array API: arrays may be NumPy's or PyTorch's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from array_api_compat import array_namespace, device

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
        xp = array_namespace(self.inputs)
        power = _diagonal(xp, self.inputs)
        # An input that never varies decides nothing: its weights stay where they are.
        floor = xp.max(power) * 1e-6 + _TINY
        extra = ridge * power + floor
        inputs = xp.asarray(self.inputs, copy=True)
        for j in range(inputs.shape[-1]):  # a diagonal matrix would be as large as the moments
            inputs[:, j, j] += extra[:, j]
        return Moments(inputs, self.outputs + extra[:, None, :] * weight)


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
    depth = inputs.shape[-1]
    for _ in range(sweeps):
        moved = False
        for first in range(0, depth, _PANEL):
            panel = slice(first, min(first + _PANEL, depth))
            columns = (a[:, panel, :] for a in (codes, scales, low, high))
            change = _sweep_panel(xp, inputs[:, panel, panel], error[:, panel, :], *columns)
            if not xp.any(change):
                continue
            moved = True
            error -= inputs[:, :, panel] @ change
        if not moved:
            break
    return xp.matrix_transpose(codes)


def _columns_first(xp: Any, array: Array, like: Array) -> Array:
    groups, outputs, depth = like.shape
    copy = xp.zeros((groups, depth, outputs), dtype=like.dtype, device=device(like))
    copy[...] = xp.matrix_transpose(xp.broadcast_to(array, like.shape))
    return copy


def _sweep_panel(
    xp: Any, inputs: Array, error: Array, codes: Array, scales: Array, low: Array, high: Array
) -> Array:
    """Change the codes of one panel, and return by how much the weights change."""
    error, moved = xp.asarray(error, copy=True), xp.zeros_like(codes)
    depth = codes.shape[1]
    for first in range(0, depth, _BLOCK):
        last = min(first + _BLOCK, depth)
        block, rest = slice(first, last), slice(last, depth)
        columns = (a[:, block, :] for a in (codes, scales, low, high))
        moved[:, block, :] = _sweep_block(xp, inputs[:, block, block], error[:, block, :], *columns)
        if last < depth:
            error[:, rest, :] -= inputs[:, rest, block] @ moved[:, block, :]
    return moved


def _sweep_block(
    xp: Any, inputs: Array, error: Array, codes: Array, scales: Array, low: Array, high: Array
) -> Array:
    """Change the codes of one block, column after column, and return by how much the weights change."""
    gain = 1.0 / (_diagonal(xp, inputs)[:, :, None] * scales)
    # What each column is to be, were none before it changed; that is taken off in its turn.
    wanted = codes + error * gain
    moved = xp.zeros_like(codes)
    for j in range(codes.shape[1]):
        best = wanted[:, j, :]
        if j:
            before = (inputs[:, j : j + 1, :j] @ moved[:, :j, :])[:, 0, :]
            best = best - before * gain[:, j, :]
        best = xp.minimum(xp.maximum(xp.round(best), low[:, j, :]), high[:, j, :])
        moved[:, j, :] = (best - codes[:, j, :]) * scales[:, j, :]
        codes[:, j, :] = best
    return moved


def _diagonal(xp: Any, matrices: Array) -> Array:
    return xp.linalg.diagonal(matrices)
