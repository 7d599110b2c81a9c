"""Inputs that are fixed to a value, and inputs that get other shapes than the file says.

What follows from a fixed input or from static sizes is constant, so that conditions on it fold: a model
that chooses its branch by a sampling rate becomes the model of one rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from lowbit.config.config import FixedValue, SizeOrName
from lowbit.errors import ConfigError, ModelError, did_you_mean
from lowbit.graph.naming import name_everything
from lowbit.graph.session import input_dtype
from lowbit.normalize.conditions import fold_conditions


def settle_inputs(
    model: ir.Model, fixed: Mapping[str, FixedValue], shapes: Mapping[str, Sequence[SizeOrName]]
) -> None:
    """Fix inputs to values and set shapes of others. Changes ``model``."""
    for name, value in fixed.items():
        _fix(model.graph, name, value)
    for name, shape in shapes.items():
        _reshape(_input(model.graph, name, "input_shapes"), shape)
    if fixed or shapes:
        _forget_shapes(model.graph)
        _take_branches(model)


def _take_branches(model: ir.Model) -> None:
    """Replace conditions that became constant by their branches. Changes ``model``.

    onnxruntime does so itself when it loads the model, and fails on some branches in branches.
    """
    if any(node.op_type == "If" for node in model.graph):
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        common.LiftSubgraphInitializersToMainGraphPass()(model)
        name_everything(model)
        fold_conditions(model)


def settle_like(model: ir.Model, quantized: ir.Model) -> None:
    """Fix in a float model the inputs that were fixed when it was quantized. Changes ``model``."""
    stored = msgspec.json.decode(quantized.metadata_props.get("lowbit.config", "{}"))
    have = {value.name for value in model.graph.inputs}
    settle_inputs(
        model,
        {name: value for name, value in stored.get("fix_inputs", {}).items() if name in have},
        {name: shape for name, shape in stored.get("input_shapes", {}).items() if name in have},
    )


def check_same_inputs(model: ir.Model, quantized: ir.Model) -> None:
    """Raise if both cannot take the same samples, and so are not of one model."""
    wanted = {value.name: value for value in model.graph.inputs}
    for value in quantized.graph.inputs:
        if value.name not in wanted:
            raise ModelError(
                f"the quantized model has an input {value.name!r}, the float model has "
                f"{', '.join(map(repr, wanted))}: give the float model it was made from"
            )
        have, want = _sizes(value), _sizes(wanted[value.name])
        differ = any(a != b for a, b in zip(have, want, strict=False) if None not in (a, b))
        if have and want and (len(have) != len(want) or differ):
            raise ModelError(
                f"input {value.name!r} is {_shape_text(value)} in the quantized model and "
                f"{_shape_text(wanted[value.name])} in the float model: give the float model it was made from"
            )


def _shape_text(value: ir.Value) -> str:
    sizes = (str(d if isinstance(d, int) else d.value or "?") for d in value.shape or ())
    return f"[{', '.join(sizes)}]"


def _sizes(value: ir.Value) -> list[int | None]:
    """Return the sizes of a shape, ``None`` for those that are free."""
    return [d if isinstance(d, int) and d >= 0 else None for d in value.shape or ()]


def _fix(graph: ir.Graph, name: str, value: FixedValue) -> None:
    found = _input(graph, name, "fix_inputs")
    data = _as_array(found, value)
    graph.inputs.remove(found)
    found.const_value = ir.tensor(data, name=name)
    found.shape = ir.Shape(data.shape)
    if name not in graph.initializers:
        graph.register_initializer(found)


def _input(graph: ir.Graph, name: str, option: str) -> ir.Value:
    by_name = {str(value.name): value for value in graph.inputs}
    if name not in by_name:
        raise ConfigError(
            f"{option}: the model has no input {name!r}{did_you_mean(name, by_name)} "
            f"(it has {', '.join(by_name) or 'none'})"
        )
    return by_name[name]


def _as_array(value: ir.Value, given: FixedValue) -> NDArray[Any]:
    """Return what is given in the input's type and shape."""
    dtype, name = input_dtype(value), value.name
    data = np.asarray(given)
    kinds = {"U": "U"}.get(dtype.kind, "biuf")
    if data.dtype.kind not in kinds or not np.array_equal(data, _cast(data, dtype)):
        raise ConfigError(f"input {name!r} is of type {dtype}, which cannot hold {given!r}")
    data = _cast(data, dtype)
    if value.shape is None:
        return data
    shape = tuple(d if isinstance(d, int) and d >= 0 else 1 for d in value.shape)
    if data.ndim == 0:
        return np.full(shape, data)
    fixed = _sizes(value)
    fits = len(fixed) == data.ndim and all(
        want in (None, have) for want, have in zip(fixed, data.shape, strict=True)
    )
    if not fits:
        raise ConfigError(
            f"input {name!r} has shape {list(value.shape)}; the value it is fixed to has "
            f"{list(data.shape)}"
        )
    return data


def _cast(data: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore", over="ignore"):
        # A float may lose digits on its way into the type, which is no mistake.
        return data.astype(dtype) if dtype.kind != "f" else np.asarray(data, dtype)


def _reshape(value: ir.Value, shape: Sequence[SizeOrName]) -> None:
    if value.shape is not None and len(value.shape) != len(shape):
        raise ConfigError(
            f"input_shapes: input {value.name!r} has {len(value.shape)} axes "
            f"({_listed(value.shape)}), not {len(shape)} ({_listed(shape)})"
        )
    value.shape = ir.Shape([None if size == -1 else size for size in shape])


def _listed(shape: Iterable[object]) -> str:
    """Return the sizes of a shape, those without a number by their names."""
    known = (size.value if isinstance(size, ir.SymbolicDim) else size for size in shape)
    return f"[{', '.join('?' if size is None else str(size) for size in known)}]"


def _forget_shapes(graph: ir.Graph) -> None:
    """Forget the sizes that were inferred from what the inputs were before."""
    for part in (graph, *graph.subgraphs()):
        for node in part:
            for value in node.outputs:
                rank = None if value.shape is None else len(value.shape)
                value.shape = None if rank is None else ir.Shape([None] * rank)


def free_sizes(model: ir.Model) -> None:
    """Turn sizes of -1, which some exporters write, into free sizes. Changes ``model``."""
    for part in (model.graph, *model.graph.subgraphs()):
        values = (*part.inputs, *(v for node in part for v in node.outputs))
        for value in values:
            if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape):
                sizes = [None if isinstance(d, int) and d < 0 else d for d in value.shape]
                value.shape = ir.Shape(sizes)
