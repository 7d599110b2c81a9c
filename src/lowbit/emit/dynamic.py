"""Activations whose scale is found when the model runs: DynamicQuantizeLinear and DequantizeLinear.

Standard operators throughout; onnxruntime makes one integer product of them and the MatMul after.
"""

from __future__ import annotations

from collections.abc import Callable

from lowbit.emit.emission import Emission, EmittedTensor
from lowbit.graph.naming import tensor_name
from lowbit.planning.plan import TensorPlan
from lowbit.scales.stored import Stored


class DynamicNodes:
    """Writes activations with a dynamic scale."""

    def __init__(self, context: Emission) -> None:
        self._editor = context.editor

    def activation(self, tensor: TensorPlan) -> EmittedTensor:
        """Let the consumers that the plan names read an activation through a Q/DQ pair."""
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
        names = (tensor_name(node.outputs[0]) for node in (quantizer, dequantizer))
        return EmittedTensor(*names)

    def weight(self, tensor: TensorPlan, make: Callable[[], Stored]) -> EmittedTensor:
        """Refuse: the scale of a constant is known."""
        del make
        raise TypeError(f"{tensor.name!r} is a constant, whose scale is not found at run time")
