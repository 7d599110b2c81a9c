"""Constants of a graph: reading them, adding them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer that no feed can replace."""
    return value is not None and value.is_initializer() and not value.is_graph_input()


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the data of a constant, or ``None`` for anything else."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return value.const_value.numpy()


def read_tensor(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """Return the data of a tensor, of one outside the file as a copy that nothing else keeps.

    onnx-ir maps the file it is in and keeps the mapping, which adds up to all weights.
    """
    if not isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8 or not tensor.size:
        return tensor.numpy()
    dtype = np.dtype(tensor.dtype.numpy()).newbyteorder("<")
    flat = np.fromfile(tensor.path, dtype, tensor.size, offset=tensor.offset or 0)
    return flat.reshape(tensor.shape.numpy())


def constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant without reading it, or ``None`` for anything else."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return tuple(value.const_value.shape.numpy())


def scalar(value: ir.Value | None) -> float | None:
    """Return a constant of one element as a number, or ``None``."""
    data = constant(value)
    return float(data.reshape(-1)[0]) if data is not None and data.size == 1 else None


def add_constant(graph: ir.Graph, name: str, data: NDArray[Any] | ir.TensorProtocol) -> ir.Value:
    """Register ``data`` under ``name``, or a free name like it, and return its value."""
    name = free_name(graph, name)
    if isinstance(data, (np.ndarray, np.generic)):
        # Not ir.tensor: its checks of protocols take longer than all the rest of emission.
        data = ir.Tensor(np.asarray(data), name=name)
    value = ir.val(name, const_value=data)
    graph.register_initializer(value)
    return value


def free_name(graph: ir.Graph, name: str) -> str:
    """Return ``name``, with a number behind it if an initializer has it already."""
    candidate, count = name, 0
    while candidate in graph.initializers:
        count += 1
        candidate = f"{name}_{count}"
    return candidate
