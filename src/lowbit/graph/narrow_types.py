"""Tensors of types that onnxruntime and NumPy do not exchange: bfloat16, 8-bit floats, 4 and 2 bits.

onnxruntime takes their bytes with the type's name, and its results are read from its own memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

# By name, since older versions of onnx-ir lack some of them.
_NARROW = frozenset(
    kind
    for kind in ir.DataType
    if kind.name.startswith(("BFLOAT16", "FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2"))
)


def narrow_type(text: str) -> ir.DataType | None:
    """Return the type of ``tensor(bfloat16)`` and such, ``None`` for all that NumPy has as well."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    kind = ir.DataType.__members__.get(name)
    return kind if kind in _NARROW else None


def to_runtime(array: NDArray[Any], kind: ir.DataType | None) -> Any:
    """Return an array as onnxruntime's value; ``kind`` is its type where NumPy has none."""
    import onnxruntime as ort

    if kind is None:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    array = np.ascontiguousarray(array)
    if kind.bitwidth >= 8:
        stored = array.view(np.uint16 if kind.bitwidth == 16 else np.uint8)
    else:
        # The value is as large as its shape says, of which the packed elements fill the beginning.
        stored = np.zeros(array.shape, np.uint8)
        packed = np.frombuffer(ir.tensor(array, dtype=kind).tobytes(), np.uint8)
        stored.reshape(-1)[: packed.size] = packed
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(stored, int(kind))


def from_runtime(value: Any) -> Any:
    """Return a value of onnxruntime's as an array."""
    kind = narrow_type(value.data_type())
    if kind is None:
        return value.numpy()
    shape = tuple(value.shape())
    size = math.ceil(math.prod(shape) * kind.bitwidth / 8)
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    if kind.bitwidth >= 8:
        return np.frombuffer(data, kind.numpy()).reshape(shape)
    tensor = ir.PackedTensor(np.frombuffer(data, np.uint8), dtype=kind, shape=ir.Shape(shape))
    return tensor.numpy()


def has_narrow(session: Any) -> bool:
    """Whether a session has inputs or outputs of such types."""
    ends = (*session.get_inputs(), *session.get_outputs())
    return any(narrow_type(value.type) is not None for value in ends)


def run_narrow(session: Any, outputs: list[str], feed: Mapping[str, Any]) -> list[Any]:
    """Run a session that has inputs or outputs of such types."""
    kinds = {value.name: narrow_type(value.type) for value in session.get_inputs()}
    values = {name: to_runtime(np.asarray(array), kinds.get(name)) for name, array in feed.items()}
    return [from_runtime(value) for value in session.run_with_ort_values(outputs, values)]


def has_float8(model: ir.Model) -> bool:
    """Whether a model stores 8-bit floats, which onnxruntime's optimizations take for integers.

    Fused kernels then refuse it, and a Relu before such a QuantizeLinear is removed.
    """
    stored = model.graph.initializers.values()
    return any(value.dtype is not None and "FLOAT8" in value.dtype.name for value in stored)
