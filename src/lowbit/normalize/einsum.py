"""Einsum with a constant is a linear layer: it becomes a MatMul, with what reshapes around it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import (
    add_constant,
    constant_shape,
    is_constant,
    read_tensor,
    replace_node,
)
from lowbit.graph.naming import tensor_name

_ANY = "..."


@dataclasses.dataclass(frozen=True, slots=True)
class _Product:
    """Which labels of an equation are kept, summed over, and made of the constant."""

    x: tuple[str, ...]
    weight: tuple[str, ...]
    result: tuple[str, ...]
    kept: tuple[str, ...]
    summed: tuple[str, ...]
    made: tuple[str, ...]

    @property
    def has_any(self) -> bool:
        """Whether axes that are not named take part, so that nothing can be moved or reshaped."""
        return _ANY in self.x

    @property
    def is_simple(self) -> bool:
        """Whether it is a MatMul as it stands, but for the order of the weight's axes."""
        ordered = (*self.kept, *self.summed) == self.x and (*self.kept, *self.made) == self.result
        return ordered and len(self.summed) == len(self.made) == 1


def einsum_to_matmul(model: ir.Model) -> None:
    """Replace every Einsum that multiplies by a constant by a MatMul. Changes ``model``."""
    for node in tuple(model.graph):
        if node.op_type != "Einsum" or node.domain != "" or len(node.inputs) != 2:
            continue
        at = [index for index, value in enumerate(node.inputs) if is_constant(value)]
        if len(at) != 1:
            continue
        product = _parsed(node.attributes.get_string("equation", ""), at[0])
        value = node.inputs[at[0]]
        if product is None or value is None or value.dtype != ir.DataType.FLOAT:
            continue
        shape = constant_shape(value)
        if shape is not None and len(shape) == len(product.weight):
            _replace(model.graph, node, node.inputs[1 - at[0]], value, product)


def _parsed(equation: str, constant: int) -> _Product | None:
    """Return what an equation says of a product with a constant; ``None`` if it is another."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = [_labels(term) for term in left.split(",")]
    result = _labels(right)
    if not arrow or len(terms) != 2 or any(len(set(t)) < len(t) for t in (*terms, result)):
        return None
    weight, x = terms[constant], terms[1 - constant]
    kept = tuple(label for label in x if label in result and label not in weight)
    summed = tuple(label for label in x if label in weight and label not in result)
    made = tuple(label for label in result if label in weight and label not in x)
    product = _Product(x, weight, result, kept, summed, made)
    complete = (
        set(x) == {*kept, *summed}
        and set(weight) == {*summed, *made}
        and set(result) == {*kept, *made}
    )
    if not complete or not summed or not made or _ANY in weight:
        return None
    return product if product.is_simple or not product.has_any else None


def _labels(term: str) -> tuple[str, ...]:
    found: list[str] = []
    while term:
        size = len(_ANY) if term.startswith(_ANY) else 1
        found.append(term[:size])
        term = term[size:]
    return tuple(found)


def _replace(
    graph: ir.Graph, node: ir.Node, x: ir.Value | None, weight: ir.Value, product: _Product
) -> None:
    if x is None:
        return
    name = tensor_name(node.outputs[0])
    sizes = dict(zip(product.weight, constant_shape(weight) or (), strict=True))
    new: list[ir.Node] = []

    def add(op: str, more: Sequence[ir.Value], attributes: dict[str, Sequence[int]]) -> None:
        source = new[-1].outputs[0] if new else x
        new.append(ir.node(op, [source, *more], attributes, name=f"{node.name}_{op}_{len(new)}"))
        new[-1].outputs[0].name = f"{name}_{op}_{len(new)}"

    def reshape(shape: Sequence[int]) -> None:
        add("Reshape", [add_constant(graph, f"{name}_shape", np.array(shape, np.int64))], {})

    rows = [0] * len(product.kept)  # as large as they are
    wanted, made = (*product.kept, *product.summed), (*product.kept, *product.made)
    if product.x != wanted:
        add("Transpose", (), {"perm": [product.x.index(label) for label in wanted]})
    if len(product.summed) > 1:
        reshape([*rows, math.prod(sizes[label] for label in product.summed)])
    add("MatMul", [_matrix(graph, weight, product, sizes)], {})
    if len(product.made) > 1:
        reshape([*rows, *(sizes[label] for label in product.made)])
    if product.result != made:
        add("Transpose", (), {"perm": [made.index(label) for label in product.result]})
    replace_node(graph, node, new)


def _matrix(
    graph: ir.Graph, weight: ir.Value, product: _Product, sizes: dict[str, int]
) -> ir.Value:
    """Return the weights as inputs x outputs: the same, or a constant made of them when it is read."""
    order = (*product.summed, *product.made)
    shape = [math.prod(sizes[n] for n in labels) for labels in (product.summed, product.made)]
    tensor = weight.const_value
    if tensor is None or (order == product.weight and len(order) == 2):
        return weight
    perm, name = [product.weight.index(label) for label in order], f"{weight.name}_matrix"

    def made() -> ir.TensorProtocol:
        data = read_tensor(tensor).transpose(perm).reshape(shape)
        return ir.Tensor(np.ascontiguousarray(data), name=name)

    is_outside = isinstance(tensor, ir.ExternalTensor)
    later = ir.LazyTensor(made, dtype=tensor.dtype, shape=ir.Shape(shape), name=name)
    return add_constant(graph, name, later if is_outside else made())
