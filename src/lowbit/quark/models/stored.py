"""Stored values of a model: constants, whole models in another float type or as text, and histograms."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.data import open_data
from lowbit.errors import ModelError
from lowbit.files import temporary_folder
from lowbit.graph import io
from lowbit.graph.editing import constant, replace_constant
from lowbit.graph.session import model_inputs, session
from lowbit.normalize.precision import single_precision


def own_constants(model: ir.Model, op_types: Collection[str]) -> ir.Model:
    """Return the model with a copy of each shared constant for every node (of some types)."""
    model = model.clone()
    for value in tuple(model.graph.initializers.values()):
        array = constant(value)
        uses = [u for u in value.uses() if not op_types or u.node.op_type in op_types]
        if array is None or len(tuple(value.uses())) < 2:
            continue
        for use in uses[1:]:
            replace_constant(model.graph, use.node, use.idx, array)
    return model


def finite_constants(model: ir.Model, largest: float) -> ir.Model:
    """Return the model with infinite constants at plus or minus ``largest``."""
    model = model.clone()
    for value in model.graph.initializers.values():
        array = constant(value)
        if array is None or array.dtype.kind != "f" or not np.isinf(array).any():
            continue
        finite = np.where(np.isposinf(array), largest, array)
        finite = np.where(np.isneginf(array), -largest, finite).astype(array.dtype)
        value.const_value = ir.tensor(finite, name=value.name)
    return model


def constants_are_no_inputs(model: ir.Model) -> ir.Model:
    """Return the model with its constants removed from the list of its inputs."""
    from onnx_ir.passes.common import RemoveInitializersFromInputsPass

    model = model.clone()
    RemoveInitializersFromInputsPass()(model)
    return model


def write_text(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write a model as protobuf text."""
    from google.protobuf import text_format

    Path(path).write_text(text_format.MessageToString(io.to_proto(model)), encoding="utf-8")


def read_text(path: str | os.PathLike[str]) -> ir.Model:
    """Return the model in a file of protobuf text."""
    from google.protobuf import text_format

    try:
        message = text_format.Parse(Path(path).read_text(encoding="utf-8"), onnx.ModelProto())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not a model as text: {error}") from error
    return io.load(message)


_HALF = ir.DataType.FLOAT16


def half_to_single(model: ir.Model) -> ir.Model:
    """Return a float16 model in float32, inputs and outputs too."""
    model = model.clone()
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype == _HALF:
            value.dtype = ir.DataType.FLOAT
    single_precision(model)
    return model


def single_to_half(model: ir.Model, *, keep_io: bool, infer_shapes: bool) -> ir.Model:
    """Return a float32 model in float16; ``keep_io`` leaves inputs and outputs in float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    message = convert_float_to_float16(
        io.to_proto(model), keep_io_types=keep_io, disable_shape_infer=not infer_shapes
    )
    return io.load(message)


def to_integer_operators(model: ir.Model) -> ir.Model:
    """Return a model of Q/DQ pairs with the integer operators onnxruntime fuses them to."""
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3  # It warns that the file holds what this machine runs best.
    with temporary_folder() as folder:
        written = folder / "model.onnx"
        options.optimized_model_filepath = str(written)
        message = io.to_proto(model).SerializeToString()
        ort.InferenceSession(message, options, providers=["CPUExecutionProvider"])
        return io.load(onnx.load(written))


_BINS = 256
_IMAGE, _MARGIN = (640, 360), 40


def weight_histograms(model: ir.Model, folder: Path, *, per_channel: bool) -> int:
    """Write a histogram, as an image and as a table, for each weight; return how many."""
    written = 0
    for name, value in model.graph.initializers.items():
        array = constant(value)
        if array is None or array.dtype.kind != "f" or array.ndim < 2:
            continue
        rows: Mapping[str, Any] = {"": array}
        if per_channel:
            rows = {f"_channel{i}": row for i, row in enumerate(array)}
        for suffix, row in rows.items():
            counts, edges = np.histogram(row, bins=_BINS)
            _write(folder / f"{_file_name(name)}{suffix}", counts, edges)
            written += 1
    return written


def tensor_histograms(model: ir.Model, data: str, folder: Path) -> int:
    """Run a model and write a histogram, image and table, for each tensor; return how many."""
    names = [str(v.name) for node in model.graph for v in node.outputs if v.name]
    feeds = open_data(data, model_inputs(model))
    with session(model, names, name="the model") as running:
        spans: dict[str, tuple[float, float]] = {}
        for feed in feeds:
            for name, array in zip(names, running.run(names, feed), strict=True):
                if np.size(array):
                    low, high = spans.get(name, (np.inf, -np.inf))
                    spans[name] = min(low, float(np.min(array))), max(high, float(np.max(array)))
        counts = {name: np.zeros(_BINS, np.int64) for name in spans}
        for feed in feeds:
            for name, array in zip(names, running.run(names, feed), strict=True):
                if name in counts:
                    counts[name] += np.histogram(array, bins=_BINS, range=_wide(spans[name]))[0]
    for name, row in counts.items():
        _write(folder / _file_name(name), row, np.linspace(*_wide(spans[name]), _BINS + 1))
    return len(counts)


def _wide(span: tuple[float, float]) -> tuple[float, float]:
    return span if span[0] < span[1] else (span[0] - 0.5, span[1] + 0.5)


def _write(path: Path, counts: NDArray[Any], edges: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("from", "to", "count"))
        table.writerows(zip(edges[:-1], edges[1:], counts, strict=True))
    _draw(path.name, counts, edges).save(path.with_name(f"{path.name}.png"))


def _draw(title: str, counts: NDArray[Any], edges: NDArray[Any]) -> Any:
    """Return the bars of a histogram as an image, with its ends and its largest count."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", _IMAGE, "white")
    draw = ImageDraw.Draw(image)
    left, top = _MARGIN, _MARGIN
    right, bottom = _IMAGE[0] - _MARGIN, _IMAGE[1] - _MARGIN
    width, height = (right - left) / len(counts), (bottom - top) / max(int(counts.max()), 1)
    for index, count in enumerate(counts):
        if count:
            start = left + index * width
            draw.rectangle(
                (start, bottom - max(count * height, 1), start + width, bottom), "#1f77b4"
            )
    draw.line((left, bottom, right, bottom), "black")
    draw.text((left, top / 3), f"{title}   (most in a bin: {int(counts.max())})", "black")
    draw.text((left, bottom + 6), f"{edges[0]:.5g}", "black")
    draw.text((right, bottom + 6), f"{edges[-1]:.5g}", "black", anchor="ra")
    return image


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)
