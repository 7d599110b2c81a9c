"""Sparse weights become dense ones when a model is read: nothing after that knows of others.

onnxruntime does the same when it opens a model. onnx-ir drops sparse weights without a word.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowbit.errors import ModelError

if TYPE_CHECKING:
    import onnx

# What onnx's message of a model can hold; a few bytes can say that a tensor has any size.
_LARGEST = 2 << 30


def without_sparse(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return ``model``, or a copy of it with dense tensors if some are sparse."""
    if not any(_has_sparse(nodes, graph) for nodes, graph in _parts(model)):
        return model
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for nodes, graph in _parts(copy):
        if graph is not None:
            graph.initializer.extend(_dense(sparse, name) for sparse in graph.sparse_initializer)
            graph.ClearField("sparse_initializer")
        for node in nodes:
            _make_dense(node, name)
    return copy


_Part = tuple[Iterable["onnx.NodeProto"], "onnx.GraphProto | None"]


def _parts(model: onnx.ModelProto) -> Iterator[_Part]:
    """Yield the nodes of every graph and function, and the graph if it is one."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield function.node, None
        yield from _inner(function.node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[_Part]:
    yield graph.node, graph
    yield from _inner(graph.node)


def _inner(nodes: Iterable[onnx.NodeProto]) -> Iterator[_Part]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g)
            for graph in attribute.graphs:
                yield from _of_graph(graph)


def _has_sparse(nodes: Iterable[onnx.NodeProto], graph: onnx.GraphProto | None) -> bool:
    if graph is not None and len(graph.sparse_initializer):
        return True
    return any(_is_sparse(attribute) for node in nodes for attribute in node.attribute)


def _is_sparse(attribute: onnx.AttributeProto) -> bool:
    return attribute.HasField("sparse_tensor") or len(attribute.sparse_tensors) > 0


def _make_dense(node: onnx.NodeProto, name: str) -> None:
    """Make the sparse value of a Constant dense. Changes ``node``."""
    import onnx

    for attribute in node.attribute:
        if not _is_sparse(attribute):
            continue
        if node.op_type != "Constant" or attribute.name != "sparse_value":
            raise ModelError(
                f"{name}: node {node.name or node.op_type!r} has a sparse tensor as its attribute "
                f"{attribute.name!r}, which cannot be read; export the model with dense tensors"
            )
        dense = onnx.helper.make_attribute("value", _dense(attribute.sparse_tensor, name))
        attribute.CopyFrom(dense)


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    from onnx import numpy_helper

    tensor = sparse.values.name
    if sparse.values.data_location or sparse.indices.data_location:
        raise ModelError(
            f"{name}: the sparse tensor {tensor!r} is outside the model's file, where only dense ones "
            "are read; export the model with dense weights"
        )
    try:
        values, indices = (numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
        shape = tuple(sparse.dims)
        return numpy_helper.from_array(_filled(values, indices, shape), tensor)
    except Exception as error:  # whatever a malformed tensor makes the reader trip over
        words = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{name}: the sparse tensor {tensor!r} cannot be read ({words}); export the model with "
            "dense weights"
        ) from error


def _filled(values: NDArray[Any], indices: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the dense tensor: ``indices`` count along all of it, or have a column for each axis."""
    if math.prod(shape) * values.itemsize > _LARGEST:
        raise ValueError(f"of shape {shape}, it is too large to be made dense")
    if indices.ndim == 2:
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    if indices.shape != values.shape or (indices < 0).any():
        raise ValueError(f"{values.shape} values at {indices.shape} places")
    dense = np.zeros(math.prod(shape), values.dtype)
    dense[indices] = values
    return dense.reshape(shape)
