"""Compute constants once, drop what computes nothing, and write out what is implicit.

Weights that reach their operator through Cast, Transpose, Reshape or arithmetic become weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import bypass, constant_shape, is_constant, replace_node
from lowbit.graph.naming import absorb, answer_to, tensor_name
from lowbit.graph.session import Array, session
from lowbit.ops.families import RANDOM
from lowbit.ops.linear import LAYERS, LINEAR, has_explicit_padding
from lowbit.ops.quantizing import CONVERTERS

# Random, quantizing, or larger than what they are made from.
_NEVER = RANDOM | CONVERTERS | {"ConstantOfShape", "Range", "Expand", "Tile"}


def fold_constants(model: ir.Model) -> None:
    """Replace every node of constant inputs by its result. Changes ``model``."""
    graph = model.graph
    nodes = _constant_nodes(graph)
    wanted = _results(nodes)
    if not wanted:
        return
    for value, array in zip(wanted, _evaluate(model, wanted), strict=True):
        if _is_numeric(array):
            _make_constant(graph, value, array)
    for node in reversed(nodes):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)


def _constant_nodes(graph: ir.Graph) -> list[ir.Node]:
    found: list[ir.Node] = []
    made: set[ir.Value] = set()
    for node in graph:
        if node.op_type in _NEVER or node.domain != "" or _has_subgraph(node) or not node.inputs:
            continue
        if all(v is None or v in made or is_constant(v) for v in node.inputs):
            found.append(node)
            made.update(node.outputs)
    return found


def _has_subgraph(node: ir.Node) -> bool:
    return any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for a in node.attributes.values()
    )


def _results(nodes: list[ir.Node]) -> list[ir.Value]:
    """Return the values by which the rest of the graph depends on ``nodes``.

    A graph output has to be written by a node, so what writes one stays.
    """
    inside = set(nodes)
    return [
        value
        for node in nodes
        for value in node.outputs
        if not value.is_graph_output() and any(user not in inside for user, _ in value.uses())
    ]


def _evaluate(model: ir.Model, wanted: list[ir.Value]) -> list[Array]:
    part = ir.convenience.extract(model.graph, (), wanted)
    with session(
        ir.Model(part, ir_version=model.ir_version), name="the constant part of the model"
    ) as running:
        return running.run([tensor_name(value) for value in wanted], {})


def _is_numeric(array: object) -> bool:
    """Whether this is a tensor of numbers: sequences and strings stay with their nodes."""
    return isinstance(array, np.ndarray) and array.dtype.kind not in "OSU"


def _make_constant(graph: ir.Graph, value: ir.Value, data: Array) -> None:
    name = tensor_name(value)
    new = ir.val(f"{name}_folded", const_value=ir.tensor(data, name=name))
    value.replace_all_uses_with(new)
    value.name = f"{name}_unused"
    new.name = name
    graph.register_initializer(new)


# Two of them are not the same.
_RANDOM = RANDOM | {"Dropout"}


def drop_identities(model: ir.Model) -> None:
    """Remove Identity, and Dropout outside training. Changes ``model``."""
    for node in tuple(model.graph):
        if node.domain != "" or node.op_type not in ("Identity", "Dropout"):
            continue
        if node.op_type == "Dropout" and not _is_inactive_dropout(node):
            continue
        _remove(model.graph, node)


def drop_duplicates(model: ir.Model) -> None:
    """Merge nodes that compute the same from the same values. Changes ``model``."""
    seen: dict[tuple[object, ...], ir.Node] = {}
    for node in tuple(model.graph):
        key = _signature(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node or any(v.is_graph_output() for v in node.outputs):
            continue
        absorb(first, node)
        for new, old in zip(first.outputs, node.outputs, strict=True):
            old.replace_all_uses_with(new)
        model.graph.remove(node, safe=True)


def _is_inactive_dropout(node: ir.Node) -> bool:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is not None:
        tensor = training.const_value
        if tensor is None or bool(tensor.numpy().any()):
            return False
    mask = node.outputs[1] if len(node.outputs) > 1 else None
    return mask is None or (not mask.uses() and not mask.is_graph_output())


def _remove(graph: ir.Graph, node: ir.Node) -> None:
    source, result = node.inputs[0], node.outputs[0]
    if source is None:
        return
    producer = source.producer()
    if result.is_graph_output():
        # The output's name must survive: the producer takes it over, if nobody else knows its own.
        if producer is None or source.is_graph_output() or producer.graph is not graph:
            return
        answer_to(producer, source.name)
        source.type, source.shape = result.type or source.type, result.shape or source.shape
    bypass(source, result)
    graph.remove(node, safe=True)


def _signature(node: ir.Node) -> tuple[object, ...] | None:
    # Operators of other domains may keep state or draw random numbers.
    if node.domain != "" or node.op_type in _RANDOM or node.op_type == "Constant":
        return None
    attributes: list[object] = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.type in (
            ir.AttributeType.GRAPH,
            ir.AttributeType.GRAPHS,
            ir.AttributeType.TENSOR,
            ir.AttributeType.TENSORS,
        ):
            return None
        attributes.append((name, repr(attribute.value)))
    inputs = tuple(_identity(v) for v in node.inputs)
    return node.op_type, inputs, tuple(attributes), len(node.outputs)


def _identity(value: ir.Value | None) -> object:
    """Return what makes an input the same as another: itself, or a small constant's content."""
    if value is None or not is_constant(value) or value.const_value is None:
        return id(value) if value is not None else None
    tensor = value.const_value
    if tensor.size > 64 or tensor.dtype == ir.DataType.STRING:
        return id(value)
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()


def decompose_hardswish(model: ir.Model) -> None:
    """HardSwish(x) becomes x * HardSigmoid(x; 1/6, 1/2). Changes ``model``."""
    for node in tuple(model.graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type != "HardSwish" or node.domain != "" or source is None:
            continue
        old = node.outputs[0]
        gate = ir.node(
            "HardSigmoid", [source], {"alpha": 1 / 6, "beta": 0.5}, name=f"{node.name}_gate"
        )
        gate.outputs[0].name = f"{tensor_name(old)}_gate"
        gate.outputs[0].type, gate.outputs[0].shape = old.type, old.shape
        replace_node(model.graph, node, [gate, ir.node("Mul", [source, gate.outputs[0]])])


_WINDOWED = (
    *(name for name in LINEAR if not LAYERS[name].is_matrix),
    "MaxPool",
    "AveragePool",
    "LpPool",
)

# The operator sets that gave pools dilations; convolutions always had them. AveragePool, which has
# them since 19, goes without: integer kernels know no such attribute, even where it says nothing.
_DILATIONS_FROM: Mapping[str, int] = MappingProxyType({"MaxPool": 10, "LpPool": 18})
_WITHOUT_DILATIONS = ("AveragePool",)


def explicit_attributes(model: ir.Model) -> None:
    """Set kernel_shape, strides, pads, dilations and group where they are missing. Changes ``model``."""
    for node in model.graph:
        if node.op_type in _WINDOWED and node.domain == "":
            _complete(node, model.graph.opset_imports.get("", 1))


def _complete(node: ir.Node, opset: int) -> None:
    kernel = _kernel_shape(node)
    if kernel is None:
        return
    rank = len(kernel)
    defaults: dict[str, list[int]] = {"kernel_shape": kernel, "strides": [1] * rank}
    if node.op_type in _WITHOUT_DILATIONS:
        if set(node.attributes.get_ints("dilations", ())) <= {1}:
            node.attributes.pop("dilations", None)
    elif opset >= _DILATIONS_FROM.get(node.op_type, 1):
        defaults["dilations"] = [1] * rank
    if "output_shape" not in node.attributes and has_explicit_padding(node):
        defaults["pads"] = [0] * 2 * rank
        if node.attributes.get_string("auto_pad", "NOTSET") == "VALID":
            # VALID overrules pads, so both go before the zeros are written.
            for name in ("auto_pad", "pads"):
                node.attributes.pop(name, None)
    for name, value in defaults.items():
        if name not in node.attributes:
            node.attributes[name] = ir.AttrInt64s(name, value)
    if node.op_type in LINEAR and "group" not in node.attributes:
        node.attributes["group"] = ir.AttrInt64("group", 1)


def _kernel_shape(node: ir.Node) -> list[int] | None:
    if "kernel_shape" in node.attributes:
        return list(node.attributes.get_ints("kernel_shape", ()))
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None:
        return None
    shape = constant_shape(weight) or weight.shape
    dims = [] if shape is None else [d for d in tuple(shape)[2:] if isinstance(d, int)]
    return dims if shape is not None and len(dims) == len(shape) - 2 else None
