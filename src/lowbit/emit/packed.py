"""Matrix products with packed weights in the graph: onnxruntime's MatMulNBits.

Weights lie output by output, cut into blocks of inputs, as unsigned integers; signed ones are moved up by
half of the range, which is where the operator takes zero to be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.emit.emission import Emission
from lowbit.graph.editing import Uses, take_over
from lowbit.graph.naming import MICROSOFT
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import IntArray
from lowbit.scales.stored import Stored

_SMALLEST_BLOCK = 16
# Of scales per channel, which the operator does not have: each is repeated for so many inputs.
_BLOCK = 128
# The sums are of integers, as they are where onnxruntime finds a DequantizeLinear before a MatMul.
_ACCURACY_LEVEL = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of a product: its name, its shape (inputs x outputs), and what is stored of it."""

    name: str
    shape: tuple[int, int]
    params: QParams
    make: Callable[[], Stored]

    @property
    def block_size(self) -> int:
        """How many inputs share a scale."""
        return self.params.group_size or _BLOCK

    @property
    def blocks(self) -> int:
        """How many blocks the inputs of an output are."""
        return -(-self.shape[0] // self.block_size)

    def packed(self) -> NDArray[np.uint8]:
        """Return outputs x blocks x bytes."""
        codes = self._unsigned(self.make()).T
        missing = self.blocks * self.block_size - codes.shape[1]
        codes = np.pad(codes, ((0, 0), (0, missing)))
        return as_bytes(codes.reshape(len(codes), self.blocks, -1), self.params.format.bits)

    def scales(self) -> NDArray[np.float32]:
        """Return the scales, outputs x blocks."""
        return np.ascontiguousarray(self._by_output(self.params.scale), np.float32)

    def zero_points(self) -> NDArray[np.uint8] | None:
        """Return the zero points, outputs x bytes; none where all are in the middle."""
        if self.params.format.signed and not self.params.zero_point.any():
            return None
        return as_bytes(self._by_output(self._unsigned(self.params.zero_point)), self.bits)

    @property
    def bits(self) -> int:
        """How many bits a weight has."""
        return self.params.format.bits

    def _unsigned(self, codes: IntArray) -> NDArray[np.uint8]:
        middle = 1 << (self.bits - 1) if self.params.format.signed else 0
        return (codes.astype(np.int16) + middle).astype(np.uint8)

    def _by_output(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        if self.params.group_size is not None:
            return values.T
        return np.broadcast_to(values.reshape(-1, 1), (self.shape[1], self.blocks))


def as_bytes(codes: NDArray[np.generic], bits: int) -> NDArray[np.uint8]:
    """Return codes along the last axis as bytes, the first of two in the lower half."""
    each = np.asarray(codes, np.uint8)
    if bits == 8:
        return np.ascontiguousarray(each)
    if each.shape[-1] % 2:
        each = np.concatenate([each, np.zeros((*each.shape[:-1], 1), np.uint8)], axis=-1)
    return np.asarray(each[..., ::2] | (each[..., 1::2] << 4), np.uint8)


class PackedNodes:
    """Writes products whose weights are packed."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._packs = "MatMulNBits" in context.options.packed

    def products(self, uses: Uses, params: QParams) -> list[ir.Node]:
        """Return the consumers of a weight that are products the operator computes."""
        size = params.group_size
        per_output = params.axis == (1 if size is None else 0)
        fits = size is None or (size >= _SMALLEST_BLOCK and size & (size - 1) == 0)
        if not (self._packs and per_output and fits and params.format.bits in (4, 8)):
            return []
        return [n for n, index in uses if n.op_type == "MatMul" and index == 1 and not n.domain]

    def write(self, nodes: list[ir.Node], matrix: Matrix) -> str:
        """Replace products of one weight, and return the name of what is stored."""
        editor, name = self._editor, matrix.name
        size = matrix.block_size * matrix.bits // 8
        shape = ir.Shape((matrix.shape[1], matrix.blocks, size))
        stored = editor.tensor(
            f"{name}_quantized",
            lambda taken: ir.LazyTensor(
                lambda: ir.Tensor(matrix.packed(), name=taken),
                dtype=ir.DataType.UINT8,
                shape=shape,
                name=taken,
            ),
        )
        inputs: list[ir.Value | None] = [stored, editor.constant(f"{name}_scale", matrix.scales())]
        zero_points = matrix.zero_points()
        if zero_points is not None:
            inputs.append(editor.constant(f"{name}_zero_point", zero_points))
        for node in nodes:
            self._replace(node, inputs, matrix)
        return stored.name or ""

    def _replace(self, node: ir.Node, inputs: list[ir.Value | None], matrix: Matrix) -> None:
        attributes = {
            "K": matrix.shape[0],
            "N": matrix.shape[1],
            "bits": matrix.bits,
            "block_size": matrix.block_size,
            "accuracy_level": _ACCURACY_LEVEL,
        }
        made = self._editor.node(
            "MatMulNBits",
            [node.inputs[0], *inputs],
            f"{node.name}_MatMulNBits",
            attributes,
            domain=MICROSOFT,
        )
        graph = self._editor.graph
        graph.insert_before(node, [made])
        take_over(node.outputs[0], made.outputs[0])
        graph.remove(node, safe=True)
