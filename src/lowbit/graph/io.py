"""Reading and writing models, whatever their size.

Weights kept as external data stay on disk until they are used. Writing is atomic: the file
appears under its name complete, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx_ir as ir

from lowbit.errors import ModelError, OutputError, did_you_mean

if TYPE_CHECKING:
    import onnx

# protobuf refuses messages of 2 GB; leave room for the graph itself.
EXTERNAL_DATA_FROM = 1_500_000_000


def load(source: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model) -> ir.Model:
    """Return the model behind a path, the bytes of a file, or a loaded model (copied)."""
    if isinstance(source, ir.Model):
        return source.clone()
    if isinstance(source, bytes):
        return _parse(source, "the given bytes")
    if isinstance(source, (str, os.PathLike)):
        return _load_file(pathlib.Path(source))
    if hasattr(source, "SerializeToString"):
        return _checked(ir.serde.deserialize_model(source), "the given ModelProto")
    raise ModelError(
        f"cannot load a model from {type(source).__name__}; give a path, bytes or a ModelProto"
    )


def save(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write ``model`` to ``path``, with its weights beside it when they exceed one file."""
    path = pathlib.Path(path)
    check_writable(path)
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    data = f"{path.name}.data" if size > EXTERNAL_DATA_FROM else None
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lowbit-") as folder:
        target = pathlib.Path(folder, path.name)
        try:
            ir.save(model, target, external_data=data)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error}") from error
        if data is not None:
            os.replace(pathlib.Path(folder, data), path.parent / data)
        os.replace(target, path)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise now, before any work, when ``path`` cannot be written later."""
    path = pathlib.Path(path)
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(f"the folder {folder} of the output {path.name} does not exist; make it")
    if path.is_dir():
        raise OutputError(f"the output {path} is a folder; give the name of a file in it")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".lowbit-"):
            pass
    except OSError as error:
        raise OutputError(f"cannot write into {folder}: {error.strerror or error}") from error
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputError(f"the output {path} exists and may not be overwritten")


@contextlib.contextmanager
def as_file(model: ir.Model) -> Iterator[pathlib.Path]:
    """Yield the path of a temporary copy, weights outside the graph file.

    onnxruntime maps such weights, which is faster and smaller than handing over bytes.
    """
    folder = tempfile.mkdtemp(prefix="lowbit-")
    try:
        path = pathlib.Path(folder, "model.onnx")
        ir.save(model, path, external_data="weights.bin")
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the model as protobuf, weights included."""
    return ir.to_proto(model)


def _load_file(path: pathlib.Path) -> ir.Model:
    if path.is_dir():
        raise ModelError(f"{path} is a folder; give the .onnx file in it")
    if not path.exists():
        siblings = [p.name for p in path.parent.glob("*.onnx")] if path.parent.is_dir() else []
        raise ModelError(f"no such model: {path}{did_you_mean(path.name, siblings)}")
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty (0 bytes); is the download or export complete?")
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf raises its own, undocumented kinds
        raise ModelError(
            f"{path} is not a readable ONNX model ({_first_line(error)}); "
            "it may be truncated, or another kind of file"
        ) from error
    model = _checked(model, str(path))
    _check_external(model, path)
    return model


def _parse(data: bytes, name: str) -> ir.Model:
    import onnx

    if not data:
        raise ModelError(f"{name} are empty; expected a serialized ONNX model")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
        return _checked(ir.serde.deserialize_model(proto), name)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{name} are not a readable ONNX model: {_first_line(error)}") from error


def _checked(model: ir.Model, name: str) -> ir.Model:
    graph = model.graph
    if graph is None or (not graph.outputs and not graph.inputs and graph.num_nodes() == 0):
        raise ModelError(f"{name}: not an ONNX model (no graph in it)")
    if not graph.outputs:
        raise ModelError(f"{name}: the graph has no outputs, so there is nothing to compute")
    if "" not in model.opset_imports and "ai.onnx" not in model.opset_imports:
        raise ModelError(f"{name}: the model imports no standard operator set")
    return model


def _check_external(model: ir.Model, path: pathlib.Path) -> None:
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            file = pathlib.Path(tensor.path)
            if not file.exists():
                raise ModelError(
                    f"{path}: the weights file {file.name} is missing; it belongs beside the model"
                )
            end = (tensor.offset or 0) + (tensor.length or 0)
            if file.stat().st_size < end:
                raise ModelError(
                    f"{path}: the weights file {file.name} ends at byte {file.stat().st_size}, "
                    f"but tensor {value.name!r} reaches to {end}; it is truncated"
                )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
