"""Running a graph piece by piece: what lies between two of its values, as a model of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from lowbit.graph import io
from lowbit.graph.session import Array, Optimize, Session


def segment_session(
    model: ir.Model,
    inputs: Mapping[str, np.dtype[Any] | None],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
    *,
    optimize: Optimize = "none",
    device: str = "cpu",
    name: str = "a segment",
) -> Session:
    """Return a session that computes ``outputs`` from ``inputs``.

    ``inputs`` have types where they are known: a model need not say them of inner values.
    ``constants`` are values that are taken as given, computed or constant in the model.
    """
    graph = ir.convenience.extract(model.graph, [*inputs, *constants], list(outputs))
    taken = {str(v.name): v for v in graph.inputs}
    graph.inputs[:] = [taken[name] for name in inputs]
    for key, dtype in inputs.items():
        if dtype is not None:
            taken[key].type = ir.TensorType(ir.DataType.from_numpy(dtype))
    for key, array in constants.items():
        value = taken[key]
        value.const_value = ir.tensor(np.ascontiguousarray(array), name=key)
        graph.initializers[key] = value
    part = ir.Model(graph, ir_version=model.ir_version, functions=tuple(model.functions.values()))
    data = io.to_proto(part).SerializeToString()
    return Session(data, threads=1, optimize=optimize, device=device, name=name)
