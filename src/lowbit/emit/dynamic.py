"""Activations whose scale is found when the model runs: DynamicQuantizeLinear and MatMulInteger.

Standard operators throughout. A product is one of integers, times both scales; onnxruntime makes one
operator of that and the bias after it. What is no such product reads a DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from lowbit.emit.emission import DynamicInput, Emission, EmittedTensor
from lowbit.graph.editing import Uses, take_over
from lowbit.graph.naming import tensor_name
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning.plan import TensorPlan
from lowbit.scales.stored import Stored


class DynamicNodes:
    """Writes activations with a dynamic scale."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._dynamic = context.dynamic

    def activation(self, tensor: TensorPlan) -> EmittedTensor:
        """Make the consumers that the plan names read an activation with a dynamic scale."""
        editor, name = self._editor, tensor.name
        value = editor.values[name]
        quantizer = editor.node(
            "DynamicQuantizeLinear",
            [value],
            f"{name}_DynamicQuantizeLinear",
            outputs=("Output", "Scale", "ZeroPoint"),
        )
        dequantizer = editor.node("DequantizeLinear", quantizer.outputs, f"{name}_DequantizeLinear")
        editor.put_after(value, [quantizer, dequantizer], tensor.consumers)
        made = DynamicInput(value, *quantizer.outputs)
        self._dynamic.update(dict.fromkeys(tensor.consumers or (), made))
        return EmittedTensor(tensor_name(made.codes), tensor.name)

    def weight(self, tensor: TensorPlan, make: Callable[[], Stored]) -> EmittedTensor:
        """Refuse: the scale of a constant is known."""
        del make
        raise TypeError(f"{tensor.name!r} is a constant, whose scale is not found at run time")


class IntegerProducts:
    """Writes products of integers."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor
        self._dynamic = context.dynamic

    def products(self, uses: Uses, params: QParams) -> list[ir.Node]:
        """Return the consumers of a weight that multiply it by integers."""
        symmetric = params.format is IntegerFormat.INT8 and not params.zero_point.any()
        if not symmetric or params.group_size is not None or params.axis not in (None, 1):
            return []
        return [
            node
            for node, index in uses
            if index == 1 and node.op_type == "MatMul" and node.name in self._dynamic
        ]

    def write(self, node: ir.Node, stored: ir.Value, scale: ir.Value) -> None:
        """Replace one MatMul."""
        editor, source, name = self._editor, self._dynamic[node.name or ""], node.name
        product = editor.node(
            "MatMulInteger", [source.codes, stored, source.zero_point], f"{name}_MatMulInteger"
        )
        floats = editor.node(
            "Cast", product.outputs, f"{name}_Cast", {"to": int(ir.DataType.FLOAT)}
        )
        both = editor.node("Mul", [source.scale, scale], f"{name}_scale")
        result = editor.node("Mul", [floats.outputs[0], both.outputs[0]], f"{name}_scaled")
        editor.graph.insert_before(node, [product, floats, both, result])
        take_over(node.outputs[0], result.outputs[0])
        editor.graph.remove(node, safe=True)
