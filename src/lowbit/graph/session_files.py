"""Write what onnxruntime reads of a model, for a session that lasts a stage.

Dozens of sessions are opened in a run. To copy the graph for each, so that values inside it become
outputs, and to write all that ONNX has fields for took several times what onnxruntime takes to open it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import onnx_ir as ir

from lowbit.graph.message import add_node
from lowbit.graph.naming import is_well_named
from lowbit.graph.nesting import subgraphs
from lowbit.graph.soundness import serialization_errors

if TYPE_CHECKING:
    import onnx

# Bytes from which on a tensor is mapped instead of being read with the graph.
_MAPPED = 1 << 12
# Where mapped tensors begin: on a line of the processor's cache.
_LINE = 64
_WEIGHTS = "weights.bin"


def is_plain(model: ir.Model) -> bool:
    """Whether ``write_plain`` can write a model: one graph, uniquely named, of numbers alone."""
    graph = model.graph
    return (
        not model.functions
        and all(_is_numbers(value.const_value) for value in graph.initializers.values())
        and not any(subgraphs(node) for node in graph)
        and is_well_named(graph)
    )


def _is_numbers(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.dtype != ir.DataType.STRING


def write_plain(model: ir.Model, outputs: Sequence[ir.Value], folder: pathlib.Path) -> pathlib.Path:
    """Write a plain model with further ``outputs``; return the path of the graph's file.

    What onnxruntime finds out itself, the types of what standard operators give, is left out.
    """
    import onnx

    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    graph = proto.graph
    graph.name = model.graph.name or "graph"
    with serialization_errors():
        for value in model.graph.inputs:
            ir.serde.serialize_value_into(graph.input.add(), value)
        for value in model.graph.outputs:
            ir.serde.serialize_value_into(graph.output.add(), value)
        for value in outputs:
            graph.output.add().name = value.name or ""
        for node in model.graph:
            add_node(graph.node.add(), node)
        for value in _given_types(model.graph):
            ir.serde.serialize_value_into(graph.value_info.add(), value)
        with (folder / _WEIGHTS).open("wb") as file:
            for value in model.graph.initializers.values():
                _add_tensor(graph.initializer.add(), value, file)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def _given_types(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values whose types onnxruntime may not infer."""
    for node in graph:
        if node.domain:
            yield from (v for v in node.outputs if v.type is not None and not v.is_graph_output())


def _add_tensor(proto: onnx.TensorProto, value: ir.Value, file: BinaryIO) -> None:
    """Write an initializer: a large one into the external data file."""
    tensor: Any = value.const_value
    size = tensor.nbytes
    # A tensor made of another one may be called like that one.
    proto.name, proto.data_type = value.name or "", int(tensor.dtype)
    proto.dims.extend(tensor.shape.numpy())
    if size < _MAPPED:
        proto.raw_data = tensor.tobytes()
        return
    start = file.tell()
    if start % _LINE:
        start = file.seek(start + -start % _LINE)
    tensor.tofile(file)
    proto.data_location = type(proto).EXTERNAL
    for key, entry in (("location", _WEIGHTS), ("offset", str(start)), ("length", str(size))):
        proto.external_data.add(key=key, value=entry)
