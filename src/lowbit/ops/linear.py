"""Layers as matrices: every learned operator is a product of weights and patches of its input.

A layer has ``groups`` of weights, each a matrix of outputs by depth (input channels of the group
times kernel size). At a position of the output it reads one patch of depth values a group. A
normalization's scale is the case of as many groups as channels, each one output and one value deep.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.editing import constant_shape
from lowbit.numerics.formats import FloatArray

Positions = NDArray[np.intp]


@dataclasses.dataclass(frozen=True)
class Layer(abc.ABC):
    """One layer's geometry."""

    groups: int
    outputs: int
    depth: int

    @abc.abstractmethod
    def matrix(self, weight: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return weights as groups x outputs x depth."""

    @abc.abstractmethod
    def weight(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return a matrix as the operator stores it."""

    @abc.abstractmethod
    def patches(self, x: FloatArray, at: Positions, shape: Sequence[int]) -> FloatArray:
        """Return groups x depth x positions of an input; ``shape`` is the output's."""

    @abc.abstractmethod
    def patch_sums(self, x: FloatArray, shape: Sequence[int]) -> FloatArray:
        """Return groups x depth: the patches of all positions, added up."""

    @abc.abstractmethod
    def flat(self, y: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return an output as channels x positions."""

    def values(self, y: FloatArray, at: Positions) -> FloatArray:
        """Return groups x outputs x positions of an output."""
        return np.asarray(self.flat(y)[:, at].reshape(self.groups, self.outputs, len(at)))

    def count(self, shape: Sequence[int]) -> int:
        """Return how many positions an output has."""
        return math.prod(shape) // (self.groups * self.outputs)


@dataclasses.dataclass(frozen=True)
class ConvLayer(Layer):
    """Conv in any number of dimensions, grouped or not."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    def matrix(self, weight: NDArray[np.generic]) -> NDArray[np.generic]:
        """Weights are [out, in / group, ...]."""
        return weight.reshape(self.groups, self.outputs, self.depth)

    def weight(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        """The inverse of ``matrix``."""
        return matrix.reshape(self.groups * self.outputs, -1, *self.kernel)

    def patches(self, x: FloatArray, at: Positions, shape: Sequence[int]) -> FloatArray:
        """Gather, with zeros where the kernel reaches over the border."""
        grid = np.unravel_index(at, (shape[0], *shape[2:]))
        index, inside = grid[0][:, None], np.ones((len(at), 1), bool)
        for axis, size in enumerate(x.shape[2:]):
            read, valid = self._read(axis, grid[axis + 1][:, None])
            valid = valid & (read >= 0) & (read < size)
            read = np.clip(read, 0, size - 1)
            index = (index[:, :, None] * size + read[:, None, :]).reshape(len(at), -1)
            inside = (inside[:, :, None] & valid[:, None, :]).reshape(len(at), -1)
        flat = x.reshape(x.shape[1], -1) if len(x) == 1 else _channels_first(x)
        taken = flat[:, index]
        if not inside.all():
            taken = taken * inside
        taken = taken.reshape(self.groups, -1, len(at), math.prod(self.kernel))
        return np.ascontiguousarray(taken.swapaxes(2, 3)).reshape(self.groups, self.depth, -1)

    def _read(self, axis: int, at: Positions) -> tuple[Positions, NDArray[np.bool_]]:
        """Return which places of one axis the kernel reads, and whether it does."""
        offsets = np.arange(self.kernel[axis]) * self.dilations[axis]
        read = at * self.strides[axis] + offsets - self.pads[axis]
        return read, np.ones(read.shape, bool)

    def patch_sums(self, x: FloatArray, shape: Sequence[int]) -> FloatArray:
        """Each kernel tap sees a window of the input: sum over it, axis by axis."""
        sums = x.sum(axis=0)
        for axis in reversed(range(len(self.kernel))):
            # The last axis but those of taps done before goes, its taps come first of these.
            seen = self._seen(axis, x.shape[axis + 2], shape[axis + 2])
            done = len(self.kernel) - 1 - axis
            sums = np.moveaxis(np.moveaxis(sums, -1 - done, -1) @ seen, -1, -1 - done)
        return np.ascontiguousarray(sums).reshape(self.groups, self.depth)

    def _seen(self, axis: int, size: int, out: int) -> FloatArray:
        """Return places x taps of one axis: how often the tap meets the place."""
        seen = np.zeros((size, self.kernel[axis]), np.float32)
        for tap in range(self.kernel[axis]):
            seen[self._window(axis, tap, size, out), tap] = 1.0
        return seen

    def _window(self, axis: int, tap: int, size: int, out: int) -> slice:
        step = self.strides[axis]
        start = tap * self.dilations[axis] - self.pads[axis]
        first = max(0, -(start // step))
        last = min(out, (size - 1 - start) // step + 1)
        if last <= first:
            return slice(0, 0)
        return slice(start + first * step, start + (last - 1) * step + 1, step)

    def flat(self, y: NDArray[np.generic]) -> NDArray[np.generic]:
        """Channels are axis 1."""
        return y.reshape(y.shape[1], -1) if len(y) == 1 else _channels_first(y)


@dataclasses.dataclass(frozen=True)
class TransposedLayer(ConvLayer):
    """ConvTranspose: a position of the output reads the taps that reach it."""

    def matrix(self, weight: NDArray[np.generic]) -> NDArray[np.generic]:
        """Weights are [in, out / group, ...]."""
        parts = weight.reshape(self.groups, -1, self.outputs, math.prod(self.kernel))
        return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(self.groups, self.outputs, -1)

    def weight(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        """The inverse of ``matrix``."""
        parts = matrix.reshape(self.groups, self.outputs, -1, math.prod(self.kernel))
        return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(-1, self.outputs, *self.kernel)

    def _read(self, axis: int, at: Positions) -> tuple[Positions, NDArray[np.bool_]]:
        offsets = np.arange(self.kernel[axis]) * self.dilations[axis]
        reached = at + self.pads[axis] - offsets
        return reached // self.strides[axis], reached % self.strides[axis] == 0

    def _window(self, axis: int, tap: int, size: int, out: int) -> slice:
        step = self.strides[axis]
        start = tap * self.dilations[axis] - self.pads[axis]
        first = max(0, -(start // step))
        last = min(size, (out - 1 - start) // step + 1)
        return slice(first, max(first, last))


@dataclasses.dataclass(frozen=True)
class MatrixLayer(Layer):
    """Gemm, and MatMul with a constant matrix: rows of the input times the matrix."""

    transposed: bool
    alpha: float = 1.0

    def matrix(self, weight: NDArray[np.generic]) -> NDArray[np.generic]:
        """Weights are depth x outputs, or the other way round."""
        return np.ascontiguousarray(weight if self.transposed else weight.T)[None]

    def weight(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        """The inverse of ``matrix``."""
        return np.ascontiguousarray(matrix[0] if self.transposed else matrix[0].T)

    def patches(self, x: FloatArray, at: Positions, shape: Sequence[int]) -> FloatArray:
        """A patch is a row."""
        del shape
        rows = x.reshape(-1, self.depth)[at]
        return np.ascontiguousarray(rows.T)[None] * np.float32(self.alpha)

    def patch_sums(self, x: FloatArray, shape: Sequence[int]) -> FloatArray:
        """Add up the rows."""
        del shape
        return np.asarray(x.reshape(1, -1, self.depth).sum(axis=1) * np.float32(self.alpha))

    def flat(self, y: NDArray[np.generic]) -> NDArray[np.generic]:
        """Channels are the last axis."""
        return y.reshape(-1, self.outputs).T


@dataclasses.dataclass(frozen=True)
class NormLayer(Layer):
    """InstanceNormalization, LayerNormalization: a factor for each channel of the normalized."""

    axes: tuple[int, ...]
    epsilon: float
    last: bool
    shape: tuple[int, ...]

    def matrix(self, weight: NDArray[np.generic]) -> NDArray[np.generic]:
        """One weight a group."""
        return weight.reshape(self.groups, 1, 1)

    def weight(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        """The inverse of ``matrix``."""
        return matrix.reshape(self.shape)

    def patches(self, x: FloatArray, at: Positions, shape: Sequence[int]) -> FloatArray:
        """A patch is one normalized value."""
        del shape
        return np.asarray(self.flat(self._normalized(x))[:, None, at], np.float32)

    def patch_sums(self, x: FloatArray, shape: Sequence[int]) -> FloatArray:
        """Add up the normalized values of a channel."""
        del shape
        return np.asarray(self.flat(self._normalized(x)).sum(axis=1, keepdims=True), np.float32)

    def flat(self, y: NDArray[np.generic]) -> NDArray[np.generic]:
        """Channels are axis 1, or all normalized axes."""
        return y.reshape(-1, self.groups).T if self.last else _channels_first(y)

    def _normalized(self, x: FloatArray) -> FloatArray:
        axes = self.axes if self.last else tuple(range(2, x.ndim))
        mean = x.mean(axis=axes, keepdims=True)
        spread = np.sqrt(np.square(x - mean).mean(axis=axes, keepdims=True) + self.epsilon)
        return np.asarray((x - mean) / spread, np.float32)


def layer_of(node: ir.Node) -> Layer | str:
    """Return the geometry of a node with a constant weight, or why it is not known."""
    shape = _weight_shape(node)
    if shape is None:
        return "its weight is not a constant of known shape"
    attributes = node.attributes
    if node.op_type in {"Conv", "ConvTranspose"}:
        return _conv_layer(node, shape)
    if node.op_type == "Gemm":
        if attributes.get_int("transA", 0):
            return "its input is transposed"
        transposed = bool(attributes.get_int("transB", 0))
        outputs, depth = shape if transposed else shape[::-1]
        return MatrixLayer(1, outputs, depth, transposed, attributes.get_float("alpha", 1.0))
    if node.op_type == "MatMul":
        if len(shape) != 2:
            return "its weight is not a matrix"
        return MatrixLayer(1, shape[1], shape[0], transposed=False)
    if node.op_type in {"InstanceNormalization", "LayerNormalization"}:
        last = node.op_type == "LayerNormalization"
        axes = tuple(range(-len(shape), 0)) if last else ()
        epsilon = attributes.get_float("epsilon", 1e-5)
        return NormLayer(math.prod(shape), 1, 1, axes, epsilon, last, shape)
    return f"{node.op_type} is not a learned operator"


def _conv_layer(node: ir.Node, shape: tuple[int, ...]) -> Layer | str:
    attributes = node.attributes
    rank, kernel = len(shape) - 2, shape[2:]
    if attributes.get_string("auto_pad", "NOTSET") not in {"NOTSET", "VALID"}:
        return "its padding depends on the input"
    if "output_shape" in attributes:
        return "its padding depends on the output"
    group = attributes.get_int("group", 1)
    strides = tuple(attributes.get_ints("strides", (1,) * rank))
    dilations = tuple(attributes.get_ints("dilations", (1,) * rank))
    pads = tuple(attributes.get_ints("pads", (0,) * (2 * rank)))[:rank]
    taps = math.prod(kernel)
    if node.op_type == "Conv":
        return ConvLayer(
            group, shape[0] // group, shape[1] * taps, kernel, strides, dilations, pads
        )
    return TransposedLayer(
        group, shape[1], shape[0] // group * taps, kernel, strides, dilations, pads
    )


def _weight_shape(node: ir.Node) -> tuple[int, ...] | None:
    return constant_shape(node.inputs[1]) if len(node.inputs) > 1 else None


def _channels_first(x: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
