"""Recurrent layers whose products are of integers: onnxruntime's DynamicQuantizeLSTM.

It finds the scales of what it reads, its own state included, at every step; states and gates are floats.
There is none for GRU and RNN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.emit.emission import Emission
from lowbit.graph.editing import Uses, constant_shape, take_over
from lowbit.graph.naming import MICROSOFT, tensor_name
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import IntegerFormat
from lowbit.scales.stored import Stored

_OPERATOR = "DynamicQuantizeLSTM"
# Weights and recurrence weights; the operator has eight inputs before their parameters.
_WEIGHTS = (1, 2)
_BEFORE_PARAMETERS = 8


class RecurrentNodes:
    """Writes LSTMs whose weights and inputs are integers."""

    def __init__(self, context: Emission) -> None:
        self._context = context
        self._editor = context.editor
        self._stored: dict[tuple[str, int], list[ir.Value]] = {}

    def layers(self, uses: Uses) -> list[tuple[ir.Node, int]]:
        """Return the consumers of a weight that the operator computes, with the input it is."""
        return [(node, index) for node, index in uses if index in _WEIGHTS and self._takes(node)]

    def write(self, uses: list[tuple[ir.Node, int]], name: str, make: Callable[[], Stored]) -> str:
        """Store a weight for its layers, and replace those of which both are stored."""
        params = self._context.params.tensors[name]
        shape = constant_shape(self._editor.values[name]) or (0, 0, 0)
        stored = self._transposed(name, shape, make)
        scale, zero_point = self._parameters(name, params, (shape[0], shape[1]))
        for node, index in uses:
            node.replace_input_with(index, None)
            self._stored[node.name or "", index] = [stored, scale, zero_point]
            both = [self._stored.get((node.name or "", i)) for i in _WEIGHTS]
            if both[0] is not None and both[1] is not None:
                self._replace(node, both[0], both[1])
        return tensor_name(stored)

    def _takes(self, node: ir.Node) -> bool:
        if _OPERATOR not in self._context.options.packed or node.op_type != "LSTM" or node.domain:
            return False
        return node.name in self._context.dynamic and all(self._fits(node, i) for i in _WEIGHTS)

    def _fits(self, node: ir.Node, index: int) -> bool:
        if (node.name or "", index) in self._stored:
            return True
        value = node.inputs[index]
        params = self._context.params.tensors.get("" if value is None else tensor_name(value))
        if params is None or params.group_size is not None or params.axis not in (None, 1):
            return False
        return params.format is IntegerFormat.INT8 and not params.zero_point.any()

    def _transposed(
        self, name: str, shape: tuple[int, ...], make: Callable[[], Stored]
    ) -> ir.Value:
        """Store a weight as directions x inputs x gates."""
        return self._editor.tensor(
            f"{name}_quantized",
            lambda taken: ir.LazyTensor(
                lambda: ir.Tensor(np.ascontiguousarray(make().swapaxes(1, 2)), name=taken),
                dtype=ir.DataType.INT8,
                shape=ir.Shape((shape[0], shape[2], shape[1])),
                name=taken,
            ),
        )

    def _parameters(
        self, name: str, params: QParams, shape: tuple[int, int]
    ) -> tuple[ir.Value, ir.Value]:
        """Store scales and zero points, directions x gates or one for each direction."""
        wanted = shape[:1] if params.axis is None else shape

        def whole(values: NDArray[np.generic]) -> NDArray[np.generic]:
            return np.ascontiguousarray(np.broadcast_to(values, wanted))

        scale = self._editor.constant(f"{name}_scale", whole(params.scale))
        return scale, self._editor.constant(f"{name}_zero_point", whole(params.zero_point))

    def _replace(self, node: ir.Node, weight: list[ir.Value], recurrence: list[ir.Value]) -> None:
        source = self._context.dynamic[node.name or ""].source
        others = [*node.inputs[3:], *[None] * (_BEFORE_PARAMETERS - len(node.inputs))]
        inputs = [source, weight[0], recurrence[0], *others, *weight[1:], *recurrence[1:]]
        made = ir.Node(
            MICROSOFT,
            _OPERATOR,
            inputs,
            [a for name, a in node.attributes.items() if name != "layout"],
            num_outputs=len(node.outputs),
            name=f"{node.name}_{_OPERATOR}",
        )
        self._editor.model.opset_imports.setdefault(MICROSOFT, 1)
        self._editor.graph.insert_before(node, [made])
        for before, after in zip(node.outputs, made.outputs, strict=True):
            take_over(before, after)
        self._editor.graph.remove(node, safe=True)
