"""The geometry of linear layers: how weights and input make the output, whatever the operator.

A layer has ``groups`` of weights, each a matrix of ``outputs`` by ``inputs``, with ``taps`` weights
for each pair. At a position of the output it reads one patch of ``inputs * taps`` values per group, its
``depth``. Weights are seen in three shapes: as the operator stores them, as a kernel
``[groups, outputs, inputs, taps]``, and as a matrix ``[groups, outputs, depth]``. The scale of a
normalization is the case of as many groups as channels, each one output and one value deep.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import FloatArray

# Weights that are computed with in double precision at a time.
_AT_ONCE = 1 << 21

Positions = NDArray[np.intp]
Array = NDArray[np.generic]
Floats = Callable[[Array], FloatArray]
"""Returns the numbers that stored ones stand for."""


def same_floats(array: Array) -> FloatArray:
    """Return the values unchanged."""
    return np.asarray(array, np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearLayer(abc.ABC):
    """The geometry of one layer; ``alpha`` is a factor on its products."""

    groups: int
    outputs: int
    inputs: int
    taps: int = 1
    alpha: float = 1.0

    @property
    def depth(self) -> int:
        """How many values of its input one output sums up."""
        return self.inputs * self.taps

    @property
    def channels(self) -> int:
        """How many channels the output has."""
        return self.groups * self.outputs

    @property
    def no_patches(self) -> str | None:
        """Why patches cannot be taken, or ``None`` if they can."""
        return None

    @property
    def tap_share(self) -> float:
        """The share of the taps that an output meets: less than one for strided transposition."""
        return 1.0

    @property
    def meets_all(self) -> bool:
        """Whether every weight meets a number of the input everywhere: not so at padded borders."""
        return True

    @abc.abstractmethod
    def kernel(self, weight: Array) -> Array:
        """Return weights as ``[groups, outputs, inputs, taps]``, sharing their memory."""

    def matrix(self, weight: Array) -> Array:
        """Return weights as ``[groups, outputs, depth]``."""
        kernel = np.ascontiguousarray(self.kernel(weight))
        return kernel.reshape(self.groups, self.outputs, self.depth)

    @abc.abstractmethod
    def weight(self, matrix: Array) -> Array:
        """Return a matrix as the operator stores it, sharing its memory where that is possible."""

    @abc.abstractmethod
    def patches(
        self, x: Array, at: Positions, shape: Sequence[int], floats: Floats = same_floats
    ) -> FloatArray:
        """Return ``[groups, depth, positions]`` of an input; ``shape`` is the output's.

        ``floats`` is applied to what is read of the input, so that the rest of it stays as it is stored.
        """

    @abc.abstractmethod
    def patch_sums(self, x: FloatArray, shape: Sequence[int]) -> FloatArray:
        """Return ``[groups, depth]``: the patches of all positions, added up."""

    @abc.abstractmethod
    def flat(self, y: Array) -> Array:
        """Return an output as ``[channels, positions]``."""

    def values(self, y: FloatArray, at: Positions) -> FloatArray:
        """Return ``[groups, outputs, positions]`` of an output."""
        return np.asarray(self.flat(y)[:, at].reshape(self.groups, self.outputs, len(at)))

    def count(self, shape: Sequence[int]) -> int:
        """Return how many positions an output has."""
        return math.prod(shape) // self.channels

    def spread(self, values: FloatArray) -> FloatArray:
        """Return for each weight, as stored, the number of the input channel that it multiplies."""
        by_input = values.reshape(self.groups, 1, self.inputs, 1)
        shape = (self.groups, self.outputs, self.inputs, self.taps)
        matrix = np.broadcast_to(by_input, shape).reshape(self.groups, self.outputs, self.depth)
        return np.asarray(self.weight(matrix), np.float32)

    def mean_output(self, weight: Array, means: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of each output channel, given the mean of each input channel.

        Borders of padded convolutions see slightly smaller means; that is neglected.
        """
        return self.mean_difference(weight, None, means)

    def mean_difference(
        self, new: Array, old: Array | None, means: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the same for the difference of two weights, of which some outputs are taken at a time."""
        after = self.kernel(new)
        before = None if old is None else self.kernel(old)
        by_input = means.reshape(self.groups, self.inputs)
        step = max(1, _AT_ONCE // max(1, self.groups * self.depth))
        found = []
        for start in range(0, self.outputs, step):
            part = slice(start, start + step)
            weight = after[:, part].astype(np.float64)
            if before is not None:
                weight -= before[:, part].astype(np.float64)
            sums = weight.sum(axis=3) * self.tap_share
            found.append(np.einsum("goi,gi->go", sums, by_input))
        return np.asarray(np.concatenate(found, axis=1).reshape(-1) * self.alpha)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvLayer(LinearLayer):
    """Conv in any number of dimensions, grouped or not; weights are ``[out, in / group, ...]``."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    unknown_padding: str | None = None

    @property
    def no_patches(self) -> str | None:
        """Why the padding is not known, if so."""
        return self.unknown_padding

    @property
    def meets_all(self) -> bool:
        """Whether there is no padding."""
        return self.unknown_padding is None and not any(self.pads)

    def kernel(self, weight: Array) -> Array:
        """Return a view of the weights."""
        return weight.reshape(self.groups, self.outputs, self.inputs, self.taps)

    def weight(self, matrix: Array) -> Array:
        """Return the inverse of ``matrix``."""
        return matrix.reshape(self.channels, self.inputs, *self.window)

    def patches(
        self, x: Array, at: Positions, shape: Sequence[int], floats: Floats = same_floats
    ) -> FloatArray:
        """Gather, with zeros where the window reaches over the border."""
        if not len(at):
            return np.zeros((self.groups, self.depth, 0), np.float32)
        flat = x.reshape(x.shape[1], -1) if len(x) == 1 else _channels_first(x)
        if self.sees_once:
            return floats(np.take(flat, at, axis=1)).reshape(self.groups, self.depth, len(at))
        grid = np.unravel_index(at, (shape[0], *shape[2:]))
        index, inside = grid[0][:, None], np.ones((len(at), 1), bool)
        for axis, size in enumerate(x.shape[2:]):
            read, valid = self._read(axis, grid[axis + 1][:, None])
            valid = valid & (read >= 0) & (read < size)
            read = np.clip(read, 0, size - 1)
            index = (index[:, :, None] * size + read[:, None, :]).reshape(len(at), -1)
            inside = (inside[:, :, None] & valid[:, None, :]).reshape(len(at), -1)
        # Taps before positions, so that what is taken need not be turned round.
        taken = floats(np.take(flat, index.T.reshape(-1), axis=1))
        outside = ~inside.T.reshape(-1)
        if outside.any():
            taken[:, outside] = 0
        return taken.reshape(self.groups, self.depth, len(at))

    def _read(self, axis: int, at: Positions) -> tuple[Positions, NDArray[np.bool_]]:
        """Return which positions of one axis the window reads, and whether it does."""
        offsets = np.arange(self.window[axis]) * self.dilations[axis]
        read = at * self.strides[axis] + offsets - self.pads[axis]
        return read, np.ones(read.shape, bool)

    def patch_sums(self, x: FloatArray, shape: Sequence[int]) -> FloatArray:
        """Sum over what each tap of the window sees of the input, axis by axis."""
        sums = x[0] if len(x) == 1 else x.sum(axis=0)
        if self.sees_once:
            ones = np.ones(math.prod(sums.shape[1:]), np.float32)
            return np.asarray(sums.reshape(len(sums), -1) @ ones).reshape(self.groups, self.depth)
        for axis in reversed(range(len(self.window))):
            # The last axis but those of taps done before goes, its taps come first of these.
            seen = self._seen(axis, x.shape[axis + 2], shape[axis + 2])
            done = len(self.window) - 1 - axis
            sums = np.moveaxis(np.moveaxis(sums, -1 - done, -1) @ seen, -1, -1 - done)
        return np.ascontiguousarray(sums).reshape(self.groups, self.depth)

    @property
    def sees_once(self) -> bool:
        """Whether every position of the input is read once: one tap, no stride, no padding."""
        return self.taps == 1 and set(self.strides) <= {1} and not any(self.pads)

    def _seen(self, axis: int, size: int, out: int) -> FloatArray:
        """Return positions x taps of one axis: how often the tap meets the position."""
        seen = np.zeros((size, self.window[axis]), np.float32)
        for tap in range(self.window[axis]):
            seen[self._span(axis, tap, size, out), tap] = 1.0
        return seen

    def _span(self, axis: int, tap: int, size: int, out: int) -> slice:
        step = self.strides[axis]
        start = tap * self.dilations[axis] - self.pads[axis]
        first = max(0, -(start // step))
        last = min(out, (size - 1 - start) // step + 1)
        if last <= first:
            return slice(0, 0)
        return slice(start + first * step, start + (last - 1) * step + 1, step)

    def flat(self, y: Array) -> Array:
        """Return an output whose channels are axis 1."""
        return y.reshape(y.shape[1], -1) if len(y) == 1 else _channels_first(y)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransposedConvLayer(ConvLayer):
    """ConvTranspose: an output reads the taps that reach it; weights are ``[in, out / group, ...]``."""

    @property
    def tap_share(self) -> float:
        """One over the stride of each axis."""
        return 1.0 / math.prod(self.strides)

    @property
    def meets_all(self) -> bool:
        """Borders see fewer taps, and strides skip some."""
        return False

    def kernel(self, weight: Array) -> Array:
        """Return a view of the weights."""
        return weight.reshape(self.groups, self.inputs, self.outputs, self.taps).swapaxes(1, 2)

    def weight(self, matrix: Array) -> Array:
        """Return the inverse of ``matrix``."""
        parts = matrix.reshape(self.groups, self.outputs, self.inputs, self.taps).swapaxes(1, 2)
        return np.ascontiguousarray(parts).reshape(-1, self.outputs, *self.window)

    def _read(self, axis: int, at: Positions) -> tuple[Positions, NDArray[np.bool_]]:
        offsets = np.arange(self.window[axis]) * self.dilations[axis]
        reached = at + self.pads[axis] - offsets
        return reached // self.strides[axis], reached % self.strides[axis] == 0

    def _span(self, axis: int, tap: int, size: int, out: int) -> slice:
        step = self.strides[axis]
        start = tap * self.dilations[axis] - self.pads[axis]
        first = max(0, -(start // step))
        last = min(size, (out - 1 - start) // step + 1)
        return slice(first, max(first, last))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixLayer(LinearLayer):
    """Gemm, and MatMul with a constant matrix: rows of the input times the matrix."""

    transposed: bool

    def kernel(self, weight: Array) -> Array:
        """Return a view; weights are ``[depth, outputs]``, or the other way round."""
        return (weight if self.transposed else weight.T)[None, :, :, None]

    def weight(self, matrix: Array) -> Array:
        """Return the inverse of ``matrix``."""
        return np.asarray(matrix[0] if self.transposed else matrix[0].T)

    def patches(
        self, x: Array, at: Positions, shape: Sequence[int], floats: Floats = same_floats
    ) -> FloatArray:
        """Return rows."""
        del shape
        rows = floats(x.reshape(-1, self.depth)[at])
        return np.ascontiguousarray(rows.T)[None] * np.float32(self.alpha)

    def patch_sums(self, x: FloatArray, shape: Sequence[int]) -> FloatArray:
        """Add up the rows."""
        del shape
        return np.asarray(x.reshape(1, -1, self.depth).sum(axis=1) * np.float32(self.alpha))

    def flat(self, y: Array) -> Array:
        """Return an output whose channels are the last axis."""
        return y.reshape(-1, self.outputs).T


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormLayer(LinearLayer):
    """InstanceNormalization, LayerNormalization: a factor for each channel of the normalized."""

    axes: tuple[int, ...]
    epsilon: float
    last: bool
    shape: tuple[int, ...]

    def kernel(self, weight: Array) -> Array:
        """Return one weight a group."""
        return weight.reshape(self.groups, 1, 1, 1)

    def weight(self, matrix: Array) -> Array:
        """Return the inverse of ``matrix``."""
        return matrix.reshape(self.shape)

    def patches(
        self, x: Array, at: Positions, shape: Sequence[int], floats: Floats = same_floats
    ) -> FloatArray:
        """Return one normalized value each."""
        del shape
        return np.asarray(self.flat(self._normalized(floats(x)))[:, None, at], np.float32)

    def patch_sums(self, x: FloatArray, shape: Sequence[int]) -> FloatArray:
        """Add up the normalized values of a channel."""
        del shape
        return np.asarray(self.flat(self._normalized(x)).sum(axis=1, keepdims=True), np.float32)

    def flat(self, y: Array) -> Array:
        """Return an output whose channels are axis 1, or all normalized axes."""
        return y.reshape(-1, self.groups).T if self.last else _channels_first(y)

    def _normalized(self, x: FloatArray) -> FloatArray:
        axes = self.axes if self.last else tuple(range(2, x.ndim))
        mean = x.mean(axis=axes, keepdims=True)
        spread = np.sqrt(np.square(x - mean).mean(axis=axes, keepdims=True) + self.epsilon)
        return np.asarray((x - mean) / spread, np.float32)


def _channels_first(x: Array) -> Array:
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
