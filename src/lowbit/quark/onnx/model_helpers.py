"""Small things about models that scripts take from Quark: sessions, files, constants, what nodes compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.quark import rewriting
from lowbit.quark.errors import QuarkDataError
from lowbit.quark.models.stored import constants_are_no_inputs, own_constants, write_text
from lowbit.quark.onnx.calibration.data_readers import RandomDataReader

# The names below this one are rows of a table.
__path__: list[str] = []
__all__ = [
    "check_onnx_model",
    "check_shared_initializers",
    "clean_initializer_in_input",
    "convert_nchw_to_nhwc",
    "copy_shared_nodes",
    "create_infer_session_for_onnx_model",
    "dump_model",
    "generate_initializer",
    "get_shape_list",
    "get_tensor_value",
    "register_custom_ops_library",
    "run_onnx_model",
    "save_model",
    "save_onnx_model_with_external_data",
]

Source: TypeAlias = str | Path | onnx.ModelProto


def create_infer_session_for_onnx_model(
    model_input: Source,
    sess_options: Any = None,
    providers: list[str] | None = None,
    provider_options: list[dict[str, str]] | None = None,
    use_external_data_format: bool = False,  # noqa: FBT001, FBT002
    **kwargs: Any,
) -> Any:
    """Return a session of onnxruntime for a model."""
    del use_external_data_format  # A path is opened where it lies.
    source = str(model_input)
    if isinstance(model_input, onnx.ModelProto):
        source = model_input.SerializeToString()
    return ort.InferenceSession(
        source,
        sess_options or ort.SessionOptions(),
        providers=providers or ["CPUExecutionProvider"],
        provider_options=provider_options,
        **kwargs,
    )


def register_custom_ops_library(session_options: Any, device: str = "CPU") -> None:
    """Do nothing: models that lowbit writes carry their operators."""
    del session_options, device


def check_onnx_model(
    model_input: Source,
    use_external_data_format: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Raise if a model cannot be loaded by onnxruntime."""
    create_infer_session_for_onnx_model(
        model_input, use_external_data_format=use_external_data_format
    )


def run_onnx_model(
    model_input: Source,
    use_external_data_format: bool,  # noqa: FBT001
    data_reader: Any,
) -> None:
    """Run a model once on what a reader gives."""
    running = create_infer_session_for_onnx_model(
        model_input, use_external_data_format=use_external_data_format
    )
    running.run(None, data_reader.get_next())


def save_model(
    model: onnx.ModelProto,
    path: str | Path,
    as_text: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Write a model, or its protobuf text."""
    if as_text:
        write_text(io.load(model), path)
    else:
        io.save(io.load(model), path)


def save_onnx_model_with_external_data(
    model: onnx.ModelProto,
    path: str | Path,
    save_as_external_data: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Write a model, its weights in a file apart if asked to."""
    io.save(io.load(model), path, external_data=save_as_external_data)


def convert_nchw_to_nhwc(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with Transpose at four-dimensional inputs and outputs."""
    return io.to_proto(rewriting.nchw_to_nhwc(io.load(model)))


def clean_initializer_in_input(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its constants removed from the list of its inputs."""
    return io.to_proto(constants_are_no_inputs(io.load(model)))


def copy_shared_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a copy of each shared constant for every node."""
    return io.to_proto(own_constants(io.load(model), ()))


def check_shared_initializers(onnx_model: onnx.ModelProto) -> bool:
    """Whether a constant has several consumers."""
    read = [name for node in onnx_model.graph.node for name in node.input]
    return any(read.count(tensor.name) > 1 for tensor in onnx_model.graph.initializer)


def get_tensor_value(initializer: onnx.TensorProto) -> Any:
    """Return the array in a tensor."""
    return numpy_helper.to_array(initializer)


def generate_initializer(tensor_array: Any, dtype: Any, name: str) -> onnx.TensorProto:
    """Return an array as a tensor of that type and name."""
    return numpy_helper.from_array(np.asarray(tensor_array).astype(dtype), name)


def get_shape_list(shape: onnx.TensorShapeProto) -> list[int | str]:
    """Return the sizes of a shape, names where they are not fixed."""
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in shape.dim]


def dump_model(
    model_input: Source,
    dump_data_reader: Any = None,
    random_data_reader_input_shape: Mapping[str, Sequence[int]] | None = None,
    dump_float: bool = False,  # noqa: FBT001, FBT002
    output_dir: str = "./dump_results",
) -> None:
    """Write the tensors that nodes compute for one feed, each as ``.bin`` and ``.txt``.

    Integers (the outputs of QuantizeLinear) are written as they are; everything else only if
    ``dump_float``, under a name that ends in ``_float``.
    """
    reader = dump_data_reader or RandomDataReader(model_input, random_data_reader_input_shape)
    feed = reader.get_next()
    if not feed:
        raise QuarkDataError("dump_data_reader gave no feed; one is needed")
    model = io.load(model_input)
    names = [str(v.name) for node in model.graph for v in node.outputs if v.name]
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with session(model, names, name="the model to dump") as running:
        arrays = running.run(names, feed)
    for name, array in zip(names, arrays, strict=True):
        flat = np.asarray(array).reshape(-1)
        stem = name.replace("/", "_")
        if flat.dtype.kind in "iu":
            _write(folder / stem, flat, "%d")
        elif dump_float:
            _write(folder / f"{stem}_float", flat, "%s")


def _write(path: Path, values: Any, layout: str) -> None:
    values.tofile(path.with_name(f"{path.name}.bin"))
    np.savetxt(path.with_name(f"{path.name}.txt"), values, fmt=layout, delimiter=",")
