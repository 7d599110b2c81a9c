"""Nodes that are added to a graph to carry gradients back, and what many rules have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.editing import constant
from lowbit.ops.linear import has_explicit_padding

_AXES_OF_SUM, _AXES_OF_MEAN = 13, 18
"""Operator sets from which on axes are an input."""

_TO_THE_END = np.iinfo(np.int64).max


def known_sizes(value: ir.Value) -> list[int | None] | None:
    """Return the sizes of a value, ``None`` for those that are not known; ``None`` if the rank is not."""
    if value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


class BackwardGraph:
    """A graph to whose end nodes are added; all of them are of ONNX's own domain."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph, self._count = graph, 0
        self.opset = graph.opset_imports.get("", 1)
        self._numbers: dict[float, ir.Value] = {}

    def _name(self) -> str:
        self._count += 1
        return f"lowbit/backward/{self._count}"

    def nodes(
        self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any
    ) -> list[ir.Value]:
        """Add a node and return what it writes."""
        name = self._name()
        node = ir.node(op_type, list(inputs), attributes, num_outputs=outputs, name=name)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}/{index}"
        self._graph.append(node)
        return list(node.outputs)

    def node(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node with one output and return it."""
        return self.nodes(op_type, *inputs, **attributes)[0]

    def constant(self, data: NDArray[Any]) -> ir.Value:
        """Add a constant."""
        name = self._name()
        value = ir.Value(name=name, const_value=ir.Tensor(np.asarray(data), name=name))
        self._graph.register_initializer(value)
        return value

    def integers(self, *numbers: int) -> ir.Value:
        """Add a constant of whole numbers."""
        return self.constant(np.array(numbers, np.int64))

    def number(self, number: float) -> ir.Value:
        """Return a constant of one number, which is added once."""
        if number not in self._numbers:
            self._numbers[number] = self.constant(np.array(number, np.float32))
        return self._numbers[number]

    def _reduced(self, kind: str, x: ir.Value, axes: Sequence[int], since: int) -> ir.Value:
        if self.opset < since:
            return self.node(kind, x, axes=list(axes), keepdims=1)
        return self.node(kind, x, self.integers(*axes), keepdims=1)

    def sum(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Add the sum over some axes, which stay with a size of one."""
        return self._reduced("ReduceSum", x, axes, _AXES_OF_SUM)

    def mean(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Add the mean over some axes, which stay with a size of one."""
        return self._reduced("ReduceMean", x, axes, _AXES_OF_MEAN)

    def largest(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Add the largest number along some axes, which stay with a size of one."""
        return self._reduced("ReduceMax", x, axes, _AXES_OF_MEAN)

    def like(self, x: ir.Value, shaped: ir.Value) -> ir.Value:
        """Give a value the shape of another one of as many numbers."""
        return self.node("Reshape", x, self.node("Shape", shaped))

    def spread(self, x: ir.Value, shaped: ir.Value) -> ir.Value:
        """Repeat a value along axes of size one until it has the shape of another."""
        return self.node("Expand", x, self.node("Shape", shaped))

    def sliced(self, x: ir.Value, axis: int, start: int, end: int | None) -> ir.Value:
        """Add a part of a value along an axis; to its end where there is none."""
        last = _TO_THE_END if end is None else end
        return self.node("Slice", x, self.integers(start), self.integers(last), self.integers(axis))

    def transposed(self, matrix: ir.Value) -> ir.Value:
        """Return a value with its last two axes exchanged: constants at once, others by a node."""
        data = constant(matrix)
        if data is not None:
            return self.constant(np.ascontiguousarray(np.swapaxes(data, -1, -2)))
        axes = list(range(len(matrix.shape or ())))
        return self.node("Transpose", matrix, perm=[*axes[:-2], axes[-1], axes[-2]])

    def unbroadcast(self, gradient: ir.Value, x: ir.Value, result: ir.Value) -> ir.Value | None:
        """Return a gradient of a result as that of an input, summed where the input was repeated."""
        if x.shape is None or result.shape is None:
            return None
        if tuple(x.shape) == tuple(result.shape):
            return gradient
        return self.reduced_like(gradient, x, rank=len(result.shape), result=result)

    def reduced_like(
        self, gradient: ir.Value, x: ir.Value, *, rank: int, result: ir.Value | None = None
    ) -> ir.Value | None:
        """Return a gradient of ``rank`` axes summed over those that ``x`` lacks or has of size one."""
        if x.shape is None:
            return None
        ahead = rank - len(x.shape)
        sizes: list[object] = [1] * ahead + list(x.shape)
        kept = None if result is None or result.shape is None else list(result.shape)
        axes = [
            axis
            for axis, size in enumerate(sizes)
            if axis < ahead or (size == 1 and (kept is None or kept[axis] != 1))
        ]
        if result is None:  # a product of matrices: its last two axes are the input's own
            axes = [axis for axis in axes if axis < rank - 2]
        found = self.sum(gradient, axes) if axes else gradient
        return self.like(found, x) if ahead else found

    def convolved_back(
        self,
        gradient: ir.Value,
        weight: NDArray[Any],
        node: ir.Node,
        inputs: Sequence[int | None],
        outputs: Sequence[int | None],
    ) -> ir.Value | None:
        """Return the gradient of a convolution's input, by a convolution with its kernels flipped.

        ``inputs`` and ``outputs`` are the sizes of the positions' axes.
        """
        axes, attributes = len(weight.shape) - 2, node.attributes
        if not has_explicit_padding(node) or self.opset < 11:
            return None
        strides = list(attributes.get_ints("strides", [1] * axes))
        pads = list(attributes.get_ints("pads", [0] * 2 * axes))
        dilations = list(attributes.get_ints("dilations", [1] * axes))
        reach = [d * (k - 1) for d, k in zip(dilations, weight.shape[2:], strict=True)]
        group = attributes.get_int("group", 1)
        if group == 1 and any(stride > 1 for stride in strides):
            return self._convolved_transposed(gradient, node, reach, inputs, outputs)
        begins = [r - p for r, p in zip(reach, pads[:axes], strict=True)]
        if min(begins) < 0:
            return None
        sizes = [int(size or 0) for size in outputs]
        spaced = self._spaced(gradient, sizes, strides)
        ends = [
            int(x or 0) + r - b - y * s
            for x, r, b, y, s in zip(inputs, reach, begins, sizes, strides, strict=True)
        ]
        for axis, end in enumerate(ends):
            if end < 0:
                spaced = self.sliced(spaced, axis + 2, 0, end)
        return self.node(
            "Conv",
            spaced,
            self.constant(_flipped_kernels(weight, group)),
            group=group,
            pads=[*begins, *(max(end, 0) for end in ends)],
            dilations=dilations,
        )

    def _convolved_transposed(
        self,
        gradient: ir.Value,
        node: ir.Node,
        reach: Sequence[int],
        inputs: Sequence[int | None],
        outputs: Sequence[int | None],
    ) -> ir.Value:
        """Return the same by the operator that spreads each position over those it was computed from.

        It has no zeros to multiply by, which are most of the products in a layer with strides. But of groups
        it makes a loop, which takes longer than that.
        """
        axes, attributes = len(reach), node.attributes
        strides = list(attributes.get_ints("strides", [1] * axes))
        pads = list(attributes.get_ints("pads", [0] * 2 * axes))
        reached = [
            s * (int(y or 0) - 1) + r + 1 - before - after
            for s, y, r, before, after in zip(
                strides, outputs, reach, pads[:axes], pads[axes:], strict=True
            )
        ]
        return self.node(
            "ConvTranspose",
            gradient,
            node.inputs[1],
            strides=strides,
            pads=pads,
            dilations=list(attributes.get_ints("dilations", [1] * axes)),
            output_padding=[int(x or 0) - r for x, r in zip(inputs, reached, strict=True)],
        )

    def _spaced(self, x: ir.Value, sizes: Sequence[int], strides: Sequence[int]) -> ir.Value:
        """Put zeros between positions, as many as a stride left out, and after the last."""
        if all(stride == 1 for stride in strides):
            return x
        # Each number is repeated and all but the first removed: onnxruntime takes far longer to pad.
        scales = self.constant(np.array([1, 1, *strides], np.float32))
        ways = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        repeated = self.node("Resize", x, None, scales, mode="nearest", **ways)
        first = np.zeros([s * n for s, n in zip(strides, sizes, strict=True)], np.float32)
        first[tuple(slice(None, None, stride) for stride in strides)] = 1
        return self.node("Mul", repeated, self.constant(first))


def _flipped_kernels(weight: NDArray[Any], group: int) -> NDArray[Any]:
    """Return the kernels that carry a convolution's outputs back: inputs for outputs, flipped."""
    outputs, inputs, *taps = weight.shape
    parts = weight.reshape(group, outputs // group, inputs, *taps)
    flipped = np.flip(np.swapaxes(parts, 1, 2), axis=tuple(range(3, 3 + len(taps))))
    return np.ascontiguousarray(flipped.reshape(group * inputs, outputs // group, *taps))
