"""Changes of a whole model that Quark offers as options and as tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from lowbit.errors import did_you_mean
from lowbit.graph import io
from lowbit.graph.onnx_passes import require_opset
from lowbit.graph.session import session
from lowbit.numerics.formats import FloatFormat
from lowbit.quark.errors import NotSupportedError, QuarkConfigError

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
_SHAPE = re.compile(r"^\s*(?P<name>.+?)\s*:\s*\[(?P<dims>[\d,\s]*)\]\s*$")


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes in ``name:[1,3,224,224];other:[1,10]``."""
    shapes = {}
    for part in filter(str.strip, text.split(";")):
        match = _SHAPE.match(part)
        if match is None:
            raise QuarkConfigError(
                f"cannot read the shape {part!r}; expected name:[1,3,224,224], several after ;"
            )
        dims = [word for word in match["dims"].split(",") if word.strip()]
        shapes[match["name"]] = tuple(int(word) for word in dims)
    return shapes


def fix_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> ir.Model:
    """Return the model with fixed shapes of inputs and outputs, and all others inferred anew."""
    model = model.clone()
    ends = {str(v.name): v for v in (*model.graph.inputs, *model.graph.outputs)}
    for name, shape in shapes.items():
        value = ends.get(name)
        if value is None:
            raise QuarkConfigError(
                f"the model has no input or output {name!r}{did_you_mean(name, ends)}"
            )
        if value.shape is not None and len(value.shape) != len(shape):
            raise QuarkConfigError(
                f"{name!r} has {len(value.shape)} dimensions, but is given the shape {list(shape)}"
            )
        value.shape = ir.Shape(shape)
    if not shapes:
        return model
    for node in model.graph:
        for value in node.outputs:
            if value.name not in shapes:
                value.shape = None
    from onnx_ir.passes.common import ShapeInferencePass

    return ShapeInferencePass()(model).model


def know_shapes(model: ir.Model) -> ir.Model:
    """Return the model with the shape of every tensor written down, seen in one random run."""
    unknown = [
        value
        for node in model.graph
        for value in node.outputs
        if value.name and not _is_known(value)
    ]
    if not unknown:
        return model
    from lowbit.quark.onnx.calibration.data_readers import RandomDataReader

    feed = RandomDataReader(io.to_proto(model)).get_next() or {}
    names = [str(value.name) for value in unknown]
    with session(model, names, name="the model") as running:
        for value, array in zip(unknown, running.run(names, feed), strict=True):
            value.shape = ir.Shape(np.shape(array))
            value.dtype = ir.DataType.from_numpy(np.asarray(array).dtype)
    return model


def _is_known(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(d, int) for d in value.shape)


def to_opset(model: ir.Model, version: int) -> ir.Model:
    """Return the model at a later operator set."""
    if model.opset_imports.get("", 0) > version:
        raise NotSupportedError(
            f"the model is at operator set {model.opset_imports.get('', 0)}; converting down to "
            f"{version} is not supported"
        )
    return require_opset(model, version)


def nchw_to_nhwc(model: ir.Model) -> ir.Model:
    """Return the model with four-dimensional inputs and outputs channels-last."""
    model = model.clone()
    for value in tuple(model.graph.inputs):
        if _is_image(value):
            _transpose_input(model.graph, value)
    for index, value in enumerate(tuple(model.graph.outputs)):
        if _is_image(value):
            _transpose_output(model.graph, index, value)
    model.graph.sort()
    return model


def feed_to_nhwc(feed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a feed with four-dimensional arrays channels-last."""
    return {
        name: np.transpose(array, _TO_NHWC) if np.ndim(array) == 4 else array
        for name, array in feed.items()
    }


def _is_image(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == 4


def _transpose_input(graph: ir.Graph, value: ir.Value) -> None:
    """Put a Transpose after an input, which keeps its name. Changes ``graph``."""
    assert value.shape is not None
    inner = ir.node("Transpose", [value], {"perm": _TO_NCHW}, name=f"{value.name}_to_nchw")
    inner.outputs[0].name = f"{value.name}_nchw"
    inner.outputs[0].type, inner.outputs[0].shape = value.type, value.shape
    ir.convenience.replace_all_uses_with(value, inner.outputs[0])
    inner.replace_input_with(0, value)
    value.shape = ir.Shape([value.shape[i] for i in _TO_NHWC])
    graph.insert_before(graph[0], inner)


def _transpose_output(graph: ir.Graph, index: int, value: ir.Value) -> None:
    """Put a Transpose before an output, which keeps its name. Changes ``graph``."""
    assert value.shape is not None
    name = value.name
    value.name = f"{name}_nchw"
    outer = ir.node("Transpose", [value], {"perm": _TO_NHWC}, name=f"{name}_to_nhwc")
    result = outer.outputs[0]
    result.name, result.type = name, value.type
    result.shape = ir.Shape([value.shape[i] for i in _TO_NHWC])
    graph.append(outer)
    graph.outputs[index] = result


# Larger constants are weights, which are stored in the format anyway.
_LARGEST_MASK = 1 << 24


def finite_in(model: ir.Model, fmt: FloatFormat) -> ir.Model:
    """Return the model with no finite constant that would be infinite in the format.

    float32's lowest number, which masks are made of, is: rows that are masked as a whole became NaN.
    """
    model = model.clone()
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    for value in tuple(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size > _LARGEST_MASK:
            continue
        data = tensor.numpy()
        if np.any(np.isfinite(data) & (np.abs(data) > fmt.largest)):
            kept = np.where(np.isfinite(data), np.clip(data, -fmt.largest, fmt.largest), data)
            value.const_value = ir.Tensor(kept.astype(np.float32), name=value.name)
    return model
