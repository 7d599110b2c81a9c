"""The tensors of a model, wherever they are, and a copy of a model that can be written with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from lowbit.graph.nesting import every_graph


def every_graph_of(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield every graph: the model's, its functions', and the subgraphs of both."""
    yield from every_graph(model.graph)
    for function in model.functions.values():
        yield from every_graph(function.graph)


def every_tensor(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield every tensor of the model, wherever one can be."""
    for graph in every_graph_of(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
        yield from tensors_of_nodes(graph)


def tensors_of_nodes(graph: ir.Graph) -> Iterator[ir.TensorProtocol]:
    """Yield the tensors that are attributes of a graph's nodes."""
    for node in graph:
        for attribute in node.attributes.data.values():
            yield from tensors_of_attribute(attribute)


def tensors_of_attribute(attribute: ir.Attr) -> Sequence[ir.TensorProtocol]:
    """Return the tensors of an attribute, if it has any."""
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.TENSOR:
        return (attribute.value,)
    return attribute.value if attribute.type == ir.AttributeType.TENSORS else ()


def tensors_size(model: ir.Model) -> int:
    """Return the bytes of all tensors, those of attributes and subgraphs included."""
    return sum(tensor.nbytes for tensor in every_tensor(model))


def portable(model: ir.Model, *, read: bool = False) -> ir.Model:
    """Return ``model``, or a copy of it that onnx-ir writes as it should.

    External tensors of attributes and of subgraphs would be written as references to the file they came
    from, and all others if nothing else is done about them: ``read`` reads them all. Strings would be
    written as external data, which they cannot be.
    """
    if not any(_is_awkward(tensor) for tensor in every_tensor(model)):
        return model
    model = model.clone()
    for graph in tuple(every_graph_of(model)):
        for value in tuple(graph.initializers.values()):
            if isinstance(value.const_value, ir.StringTensor):
                _make_node(graph, value, value.const_value)
            elif (read or graph is not model.graph) and isinstance(
                value.const_value, ir.ExternalTensor
            ):
                value.const_value = _read(value.const_value)
        for node in graph:
            for attribute in tuple(node.attributes.values()):
                _embed(node, attribute)
    return model


def _embed(node: ir.Node, attribute: ir.Attr) -> None:
    """Read the external tensors of an attribute into memory. Changes ``node``."""
    found = tensors_of_attribute(attribute)
    if not any(isinstance(tensor, ir.ExternalTensor) for tensor in found):
        return
    read = [_read(t) if isinstance(t, ir.ExternalTensor) else t for t in found]
    value = read[0] if attribute.type == ir.AttributeType.TENSOR else read
    node.attributes[attribute.name] = ir.Attr(attribute.name, attribute.type, value)


def _is_awkward(tensor: ir.TensorProtocol) -> bool:
    return isinstance(tensor, ir.ExternalTensor) or tensor.dtype == ir.DataType.STRING


def _make_node(graph: ir.Graph, value: ir.Value, tensor: ir.StringTensor) -> None:
    """Turn an initializer into a Constant, whose data is always written into the graph."""
    name = str(value.name)
    if value.is_graph_input() or not graph.num_nodes():
        return
    node = ir.node("Constant", [], {"value": tensor})
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    graph.insert_before(graph[0], node)
    ir.convenience.replace_all_uses_with(value, node.outputs[0], replace_graph_outputs=True)
    del graph.initializers[name]
    node.outputs[0].name = name


def _read(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
