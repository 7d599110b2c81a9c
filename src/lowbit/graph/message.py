"""Write a model as one protobuf message, one large tensor in memory at a time.

protobuf itself would hold all of them twice: in the message, and in the bytes that it becomes. The
bytes written here are the same, but that large tensors are always raw data.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.soundness import serialization_errors

if TYPE_CHECKING:
    import onnx

# Smaller tensors go through protobuf.
_LARGE = 1 << 16

# Numbers of fields in onnx.proto, and protobuf's type of fields that begin with their length.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_WITH_LENGTH = 2


def write_message(model: ir.Model, path: pathlib.Path) -> None:
    """Write ``model`` into a file, its weights inside."""
    with _without_data(model) as (proto, tensors), path.open("wb") as file:
        graph = proto.graph
        initializers = [
            _Initializer(tensor, tensors.get(tensor.name)) for tensor in graph.initializer
        ]
        graph.ClearField("initializer")
        before, after = _around(graph, _INITIALIZER)
        size = len(before) + len(after) + sum(i.size_as_field for i in initializers)
        proto.ClearField("graph")
        first, last = _around(proto, _GRAPH)
        file.write(first + _key(_GRAPH) + _varint(size) + before)
        for initializer in initializers:
            initializer.write(file)
        file.write(after + last)


def part_message(
    part: ir.GraphView,
    inputs: Mapping[str, np.dtype[Any] | None],
    constants: Mapping[str, NDArray[Any]],
    ir_version: int,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return a part of a graph as the message of a model of its own.

    ``renamed`` are values that nodes, though not those in subgraphs, and outputs read instead of others.

    ``inputs`` have types where they are known, and are floats if the graph does not say either.
    ``constants`` are added to those that the part has. What onnxruntime finds out itself, the types and
    shapes between nodes, is left out: to write them takes longer than to write the nodes.
    """
    import onnx

    proto = onnx.ModelProto(ir_version=ir_version)
    for domain, version in part.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    graph = proto.graph
    graph.name = part.name or "part"
    with serialization_errors():
        for value in part.inputs:
            ir.serde.serialize_value_into(graph.input.add(), value)
        for value in part.outputs:
            ir.serde.serialize_value_into(graph.output.add(), value)
        for node in part:
            add_node(graph.node.add(), node)
        if renamed:
            _rename(graph, renamed)
        for value in part.initializers.values():
            if value.const_value is not None:
                # A tensor made of another one may be called like that one.
                _add_tensor(graph.initializer.add(), value.const_value, value.name or "")
        for name, array in constants.items():
            tensor = ir.Tensor(np.ascontiguousarray(array), name=name)
            _add_tensor(graph.initializer.add(), tensor, name)
    for info in proto.graph.input:
        dtype = inputs[info.name]
        if dtype is not None:
            info.type.tensor_type.elem_type = int(ir.DataType.from_numpy(dtype))
        elif not info.type.WhichOneof("value"):
            info.type.tensor_type.elem_type = int(ir.DataType.FLOAT)
    return bytes(proto.SerializeToString())


def _add_tensor(proto: onnx.TensorProto, tensor: ir.TensorProtocol, name: str) -> None:
    """Write a tensor; onnx-ir takes several times as long for types that NumPy has too."""
    data = tensor.numpy() if tensor.dtype in _NUMPY_TYPES else None
    if data is None or data.dtype != tensor.dtype.numpy():
        ir.serde.serialize_tensor_into(proto, tensor)
    else:
        proto.data_type = int(tensor.dtype)
        proto.dims.extend(data.shape)
        little = data if sys.byteorder == "little" else data.astype(data.dtype.newbyteorder("<"))
        proto.raw_data = little.tobytes()
    proto.name = name


def _rename(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in renamed:
                node.input[index] = renamed[name]
    for info in graph.output:
        if info.name in renamed:
            graph.node.add(op_type="Identity", input=[renamed[info.name]], output=[info.name])


def add_node(proto: onnx.NodeProto, node: ir.Node) -> None:
    """Write what onnxruntime reads of a node."""
    proto.op_type, proto.domain, proto.name = node.op_type, node.domain, node.name or ""
    if node.overload:
        proto.overload = node.overload
    proto.input.extend(["" if value is None else value.name or "" for value in node.inputs])
    proto.output.extend([value.name or "" for value in node.outputs])
    for attribute in node.attributes.data.values():
        _add_attribute(proto.attribute.add(), attribute)


def _add_attribute(proto: onnx.AttributeProto, attribute: ir.Attr) -> None:
    """Write an attribute; onnx-ir takes several times as long for the commonest kinds."""
    field = None if attribute.is_ref() else _FIELDS.get(attribute.type)
    if field is None:
        ir.serde.serialize_attribute_into(proto, attribute)
        return
    proto.name, proto.type = attribute.name, int(attribute.type)
    if attribute.type == ir.AttributeType.INTS:
        proto.ints.extend(attribute.value)
    else:
        setattr(proto, field, attribute.value)


_NUMPY_TYPES = frozenset(
    ir.DataType[name]
    for name in "FLOAT DOUBLE INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 UINT64 BOOL".split()
)

_FIELDS: Mapping[ir.AttributeType, str] = MappingProxyType(
    {ir.AttributeType.INT: "i", ir.AttributeType.FLOAT: "f", ir.AttributeType.INTS: "ints"}
)


@contextlib.contextmanager
def _without_data(
    model: ir.Model,
) -> Iterator[tuple[onnx.ModelProto, Mapping[str, ir.TensorProtocol]]]:
    """Yield the model's message with the data of large initializers missing, and those by name."""
    values = {
        name: value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
        and value.const_value.dtype != ir.DataType.STRING
        and (value.const_value.nbytes >= _LARGE or isinstance(value.const_value, ir.ExternalTensor))
    }
    tensors = {name: value.const_value for name, value in values.items()}
    try:
        for name, value in values.items():
            value.const_value = _described(name, tensors[name])
        proto = ir.to_proto(model)
    finally:
        for name, value in values.items():
            value.const_value = tensors[name]
    yield proto, {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _described(name: str, tensor: ir.TensorProtocol | None) -> ir.ExternalTensor:
    """Return a tensor of the same description, whose data nobody reads."""
    if tensor is None:
        raise ValueError(f"initializer {name!r} has no data")
    return ir.ExternalTensor(
        "",
        None,
        None,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=tensor.doc_string,
    )


class _Initializer:
    """One initializer of a message: complete, or a description and where its data come from."""

    def __init__(self, proto: onnx.TensorProto, tensor: ir.TensorProtocol | None) -> None:
        self._tensor = tensor
        if tensor is None:
            self._first, self._last = proto.SerializeToString(), b""
        else:
            proto.ClearField("external_data")
            proto.ClearField("data_location")
            first, self._last = _around(proto, _RAW_DATA)
            self._first = first + _key(_RAW_DATA) + _varint(tensor.nbytes)

    @property
    def _size(self) -> int:
        data = 0 if self._tensor is None else self._tensor.nbytes
        return len(self._first) + data + len(self._last)

    @property
    def size_as_field(self) -> int:
        """How many bytes it takes in the graph's message."""
        return len(_key(_INITIALIZER)) + len(_varint(self._size)) + self._size

    def write(self, file: BinaryIO) -> None:
        """Write it as a field of the graph."""
        file.write(_key(_INITIALIZER) + _varint(self._size) + self._first)
        if self._tensor is not None:
            self._tensor.tofile(file)  # type: ignore[attr-defined]  # all of onnx_ir's have it
        file.write(self._last)


def _around(
    proto: onnx.ModelProto | onnx.GraphProto | onnx.TensorProto, number: int
) -> tuple[bytes, bytes]:
    """Return the bytes of all fields before a field, and of those after it."""
    first, last = type(proto)(), type(proto)()
    first.CopyFrom(proto)
    last.CopyFrom(proto)
    for field, _ in proto.ListFields():
        (first if field.number > number else last).ClearField(field.name)
    return first.SerializeToString(), last.SerializeToString()


def _key(number: int) -> bytes:
    return _varint(number << 3 | _WITH_LENGTH)


def _varint(number: int) -> bytes:
    """Return a number seven bits a byte, the lowest first; all but the last have the eighth bit set."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
