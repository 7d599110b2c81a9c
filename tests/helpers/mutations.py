"""Damage to files, the same for the same seed: bytes anywhere, and fields of models."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
from onnx import AttributeProto, TensorProto, helper


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few places flipped, cut, repeated, removed or filled with noise."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        if not found:
            break
        start = rng.randrange(len(found))
        end = min(len(found), start + rng.choice((1, 1, 2, 8, 64, 512)))
        match rng.randrange(6):
            case 0:
                found[start] ^= 1 << rng.randrange(8)
            case 1:
                del found[start:end]
            case 2:
                found[start:start] = found[start:end]
            case 3:
                found[start:end] = rng.randbytes(end - start)
            case 4:
                del found[start:]
            case _:
                found[start:end] = rng.choice((b"\0", b"\xff", b"-1", b"1e999", b"null", b"{}"))
    return bytes(found)


def _attribute(node: onnx.NodeProto, rng: random.Random) -> None:
    if not node.attribute:
        node.attribute.append(helper.make_attribute(rng.choice(("axis", "perm", "group")), 7))
        return
    attribute = rng.choice(list(node.attribute))
    match rng.randrange(6):
        case 0:
            attribute.ints.extend([rng.choice((-9, 0, 1, 1 << 40))])
        case 1:
            del attribute.ints[:]
        case 2:
            attribute.i = rng.choice((-1, 0, 99, -(1 << 62)))
        case 3:
            attribute.type = rng.choice(AttributeProto.AttributeType.values())
        case 4:
            attribute.ref_attr_name = "elsewhere"
        case _:
            attribute.name = "another"


def _tensor(tensor: onnx.TensorProto, rng: random.Random) -> None:
    match rng.randrange(7):
        case 0:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        case 1:
            tensor.dims.append(rng.choice((-1, 0, 2, 1 << 40)))
        case 2:
            del tensor.dims[:]
        case 3:
            tensor.data_type = rng.choice(TensorProto.DataType.values())
        case 4:
            tensor.name = rng.choice(("", "x", "nobody"))
        case 5:
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=rng.choice(("../a", "/a", "a", "")))
        case _:
            tensor.raw_data = b"\xff" * len(tensor.raw_data)


def _node(node: onnx.NodeProto, rng: random.Random) -> None:
    match rng.randrange(7):
        case 0 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(("", "nobody", node.output[0]))
        case 1 if node.input:
            del node.input[rng.randrange(len(node.input))]
        case 2:
            node.input.append(rng.choice(("", "x", "nobody")))
        case 3:
            node.op_type = rng.choice(("Transpose", "Conv", "Gemm", "Concat", "If", "Softmax", ""))
        case 4:
            node.domain = rng.choice(("", "ai.onnx", "com.microsoft", "own"))
        case 5:
            node.output.append("another")
        case _:
            node.output[0] = rng.choice(("", "x", "again"))


def _graph(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = model.graph
    match rng.randrange(6):
        case 0 if graph.input:
            value = rng.choice(list(graph.input))
            value.type.tensor_type.elem_type = rng.choice(TensorProto.DataType.values())
        case 1 if graph.input:
            value = rng.choice(list(graph.input))
            value.type.tensor_type.shape.dim.add(dim_value=rng.choice((-1, 0, 1 << 40)))
        case 2 if graph.output:
            del graph.output[rng.randrange(len(graph.output))]
        case 3 if graph.node:
            del graph.node[rng.randrange(len(graph.node))]
        case 4:
            model.opset_import[0].version = rng.choice((0, 1, 7, 99, -1))
        case _:
            graph.input[0].type.Clear()


def changed(message: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Return a model that protobuf reads, with some fields no exporter would write."""
    model = onnx.ModelProto()
    model.CopyFrom(message)
    for _ in range(rng.choice((1, 1, 2, 4))):
        graph = model.graph
        some: list[Callable[[], None]] = [lambda: _graph(model, rng)]
        if graph.node:
            node = rng.choice(list(graph.node))
            some += [lambda n=node: _node(n, rng), lambda n=node: _attribute(n, rng)]
        if graph.initializer:
            tensor = rng.choice(list(graph.initializer))
            some.append(lambda t=tensor: _tensor(t, rng))
        rng.choice(some)()
    return model
