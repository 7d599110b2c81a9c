"""The NPU's Softmax: exp by a polynomial and a power of two, all of it in bfloat16.

Quark writes it in bfloat16 operators, for which onnxruntime has no kernels on a CPU. Here each step is computed
in float32 and rounded to bfloat16, which gives the same numbers: a product, a sum or a quotient of two bfloat16
numbers is rounded once either way. The largest input is not subtracted first, as in a usual Softmax.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.editing import add_constant, take_over
from lowbit.ops.quantizing import DEQUANTIZE, QUANTIZE

_LOG2_E, _LN_2 = 1.4453125, 0.69140625
_POLYNOMIAL = (0.21875, 0.486328125, 1.0, 1.0)
"""Of exp between 0 and ln 2, the highest power first; these and the two above as bfloat16 has them."""

_AXES_ARE_AN_INPUT = 13


def to_npu_softmax(model: ir.Model) -> ir.Model:
    """Return the model with every quantized Softmax computed as the NPU does."""
    model = model.clone()
    for node in tuple(model.graph):
        if node.op_type == "Softmax" and node.domain == "" and _is_quantized(node):
            _Simulation(model, node).replace()
    return model


def _is_quantized(node: ir.Node) -> bool:
    source = node.inputs[0]
    before = None if source is None else source.producer()
    if before is not None and before.op_type in DEQUANTIZE:
        return True
    return any(user.op_type in QUANTIZE for user, _ in node.outputs[0].uses())


@dataclasses.dataclass
class _Simulation:
    """The nodes for one Softmax, called as Quark calls them."""

    model: ir.Model
    softmax: ir.Node

    def replace(self) -> None:
        """Put them in its place."""
        node = self.softmax
        source = node.inputs[0]
        if source is None:
            return
        x = self._rounded("exp_poly/round/cast", source)
        whole = self._floor(x)
        part = self._step("exp_poly/modulo/sub", "Sub", x, self._times(whole, _LN_2, "modulo/mul"))
        exponential = self._exponential(whole, part)
        total = self._sum(exponential)
        found = self._step("div", "Div", exponential, total)
        take_over(node.outputs[0], found)
        self.model.graph.remove(node, safe=True)

    def _floor(self, x: ir.Value) -> ir.Value:
        scaled = self._times(x, _LOG2_E, "round/mul")
        return self._plain("exp_poly/round/round", "Floor", scaled)

    def _exponential(self, whole: ir.Value, part: ir.Value) -> ir.Value:
        """Return 2 to the whole times the polynomial of the rest, by Horner's scheme."""
        value: ir.Value = self._constant("exp_poly/poly_approx/alpha_3", _POLYNOMIAL[0])
        for index, factor in enumerate(_POLYNOMIAL[1:]):
            at = f"exp_poly/poly_approx/{index + 2}"
            product = self._plain(f"{at}/mul", "Mul", part, value)
            added = self._constant(f"{at}/alpha", factor)
            value = self._step(f"{at}/add", "Add", product, added)
        power = self._step("exp_poly/pow", "Pow", self._constant("exp_poly/two", 2.0), whole)
        return self._step("exp_poly/exp_x", "Mul", power, value)

    def _sum(self, values: ir.Value) -> ir.Value:
        axis = self.softmax.attributes.get_int("axis", -1)
        name = f"{self.softmax.name}/exp_sum/sum"
        if (self.model.opset_imports.get("") or 0) < _AXES_ARE_AN_INPUT:
            made = ir.node("ReduceSum", [values], {"axes": [axis], "keepdims": 1}, name=name)
        else:
            axes = self._stored("exp_sum/axes", np.array([axis], np.int64))
            made = ir.node("ReduceSum", [values, axes], {"keepdims": 1}, name=name)
        return self._rounded("exp_sum/cast", self._placed(made))

    def _times(self, value: ir.Value, factor: float, where: str) -> ir.Value:
        word = f"exp_poly/{where}"
        return self._step(word, "Mul", value, self._constant(f"{word}_factor", factor))

    def _step(self, where: str, operator: str, *inputs: ir.Value) -> ir.Value:
        """Return what an operator gives, rounded to bfloat16."""
        return self._rounded(f"{where}_cast", self._plain(where, operator, *inputs))

    def _rounded(self, where: str, value: ir.Value) -> ir.Value:
        name = f"{self.softmax.name}/{where}"
        down = self._placed(ir.node("Cast", [value], {"to": 16}, name=name))
        return self._placed(ir.node("Cast", [down], {"to": 1}, name=f"{name}_back"))

    def _plain(self, where: str, operator: str, *inputs: ir.Value) -> ir.Value:
        return self._placed(ir.node(operator, inputs, name=f"{self.softmax.name}/{where}"))

    def _constant(self, where: str, number: float) -> ir.Value:
        return self._stored(where, np.array(number, np.float32))

    def _stored(self, where: str, array: NDArray[Any]) -> ir.Value:
        name = f"{self.softmax.name}/{where}"
        add_constant(self.model.graph, name, array)
        return self.model.graph.initializers[name]

    def _placed(self, made: ir.Node) -> ir.Value:
        made.outputs[0].name = f"{made.name}_output"
        self.model.graph.insert_before(self.softmax, made)
        return made.outputs[0]
