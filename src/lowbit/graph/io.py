"""Reading and writing models, whatever their size.

Weights kept as external data stay on disk until they are used. Writing is atomic: a model appears
under its name complete, with its weights, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.errors import ModelError, OutputError, did_you_mean
from lowbit.files import check_writable, temporary_folder
from lowbit.graph import external
from lowbit.graph.memory import garbage_collection_paused
from lowbit.graph.message import write_message
from lowbit.graph.naming import without_overloads
from lowbit.graph.soundness import (
    TO_ONNX,
    check_message,
    kind_of_file,
    read_checked,
    serialization_errors,
)
from lowbit.graph.sparse import without_sparse
from lowbit.graph.tensors import (
    every_graph_of,
    every_tensor,
    portable,
    tensors_of_nodes,
    tensors_size,
)

if TYPE_CHECKING:
    import onnx

# protobuf refuses messages of 2 GB; leave room for the graph itself.
EXTERNAL_DATA_FROM = 1_500_000_000

# A graph whose weights are outside it is smaller.
_LARGEST_GRAPH = 100_000_000

# Bytes of the tensors that are kept as arrays: biases, scalars and the weights of small layers.
_SMALL_TENSOR = 1 << 14


@garbage_collection_paused()
def load(source: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model) -> ir.Model:
    """Return the model at a path, the bytes of a file, or a loaded model (copied).

    Its nodes are in order, those of a given ``ir.Model`` as well.
    """
    if isinstance(source, ir.Model):
        return _checked(source, "the given model").clone()
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(bytes(source), "the given bytes")
    if isinstance(source, (str, os.PathLike)):
        return _load_file(pathlib.Path(source))
    if hasattr(source, "SerializeToString") and hasattr(source, "graph"):
        return _from_proto(source, "the given ModelProto", "")
    raise ModelError(
        f"cannot load a model from {type(source).__name__}; give a path, bytes or a ModelProto"
    )


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool = False,
    check: Callable[[pathlib.Path], None] | None = None,
) -> None:
    """Write ``model`` to ``path``.

    Its weights go into a file next to it when they exceed one file, or with ``external_data``.
    ``check`` sees the file before it replaces another, and raises if it must not.
    """
    path = pathlib.Path(path)
    check_writable(path)
    outside = external_data or tensors_size(model) > EXTERNAL_DATA_FROM
    try:
        old = external.replaced_weights(path)
        _map_before_removing(model, old)
        model = portable(model)
        with temporary_folder(path.parent) as folder:
            target = folder / path.name
            with garbage_collection_paused(), serialization_errors():
                if outside:
                    ir.save(model, target, external_data=external.plain_name(path))
                else:
                    write_message(model, target)
            weights = external.place_weights(target, path) if outside else None
            if check is not None:
                check(target)
            if weights is not None:
                os.replace(weights, path.parent / weights.name)
            os.replace(target, path)
        external.remove_unused([f for f in old if weights is None or f.name != weights.name])
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def as_file(model: ir.Model) -> Iterator[pathlib.Path]:
    """Yield the path of a temporary copy, weights outside the graph file.

    onnxruntime maps such weights, which is faster and smaller than handing over bytes.
    """

    def write(folder: pathlib.Path) -> pathlib.Path:
        path = folder / "model.onnx"
        with serialization_errors():
            ir.save(portable(without_overloads(model)), path, external_data="weights.bin")
        return path

    with temporary_copy(write) as path:
        yield path


@contextlib.contextmanager
def temporary_copy(write: Callable[[pathlib.Path], pathlib.Path]) -> Iterator[pathlib.Path]:
    """Yield the path that ``write`` returns of what it writes into a temporary folder."""
    with temporary_folder() as folder:
        try:
            with garbage_collection_paused():
                path = write(folder)
        except OSError as error:
            raise OutputError(
                f"cannot write a temporary copy of the model to {folder}: "
                f"{error.strerror or error}; set TMPDIR to a folder with more room"
            ) from error
        yield path


def weight_files(path: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Return the external data files of the model at ``path``."""
    path = pathlib.Path(path)
    # A file with all weights in it takes long to read, and has no external data.
    alone = path.is_file() and path.stat().st_size > _LARGEST_GRAPH
    return [] if alone else external.weight_files(path)


@garbage_collection_paused()
def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the model as protobuf, weights included."""
    with serialization_errors():
        return ir.to_proto(portable(model, read=True))


def _load_file(path: pathlib.Path) -> ir.Model:
    import onnx

    try:
        _check_file(path)
        proto = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except ModelError:
        raise
    except Exception as error:  # protobuf raises its own, undocumented kinds
        if kind := kind_of_file(path):
            raise ModelError(f"{path} is {kind}, not an ONNX model; {TO_ONNX}") from error
        raise ModelError(_unreadable(f"{path} is", error)) from error
    return _from_proto(proto, str(path), str(path.parent))


def _check_file(path: pathlib.Path) -> None:
    if path.is_dir():
        raise ModelError(f"{path} is a folder; give the .onnx file in it")
    if not path.exists():
        siblings = [p.name for p in path.parent.glob("*.onnx")] if path.parent.is_dir() else []
        raise ModelError(f"no such model: {path}{did_you_mean(path.name, siblings)}")
    if not path.is_file():
        raise ModelError(f"{path} is a device, a pipe or a socket; give an .onnx file")
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty (0 bytes); is the download or export complete?")


def _parse(data: bytes, name: str) -> ir.Model:
    import onnx

    if not data:
        raise ModelError(f"{name} are empty; expected a serialized ONNX model")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf raises its own, undocumented kinds
        raise ModelError(_unreadable(f"{name} are", error)) from error
    return _from_proto(proto, name, "")


def _from_proto(proto: onnx.ModelProto, name: str, folder: str) -> ir.Model:
    if not proto.HasField("graph"):
        raise ModelError(f"{name}: not an ONNX model (no graph in it); is it another kind of file?")
    check_message(proto, name)
    external.refuse_outside(proto, name)
    proto = _without_maps(without_sparse(proto, name), name)
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # whatever a malformed message makes the reader trip over
        raise ModelError(_unreadable(f"{name} is", error.__cause__ or error)) from error
    for tensor in every_tensor(model):
        if isinstance(tensor, ir.ExternalTensor):
            tensor.base_dir = folder or os.curdir  # without a folder onnx-ir reads anywhere
    model = _checked(model, name)
    _read_small_tensors(model, name)
    _check_external(model, name)
    return model


def _read_small_tensors(model: ir.Model, name: str) -> None:
    """Check the tensors of a message, and keep small initializers as arrays. Changes ``model``.

    onnx-ir parses a tensor anew whenever its shape or its data are asked for, which takes longer
    than all else that is done with a small one. Large ones stay where they are: once in memory.
    """
    for graph in every_graph_of(model):
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.TensorProtoTensor):
                value.const_value = _array_if_small(tensor, read_checked(tensor, name))
        for tensor in tensors_of_nodes(graph):
            if isinstance(tensor, ir.TensorProtoTensor):
                read_checked(tensor, name)


def _array_if_small(tensor: ir.TensorProtoTensor, data: NDArray[Any]) -> ir.TensorProtocol:
    if data.nbytes > _SMALL_TENSOR or data.dtype.hasobject:
        return tensor
    doc_string = tensor.doc_string
    return ir.Tensor(data, dtype=tensor.dtype, name=tensor.name, doc_string=doc_string)


def _without_maps(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model in which no value is said to be a map; raise if an input or output is one."""
    for value in (*proto.graph.input, *proto.graph.output):
        if _has_map(value.type):
            raise ModelError(
                f"{name}: {value.name!r} is a map, which cannot be read; make the model return the "
                "tensor that it is made of instead (skl2onnx: options={'zipmap': False})"
            )
    kept = [value for value in proto.graph.value_info if not _has_map(value.type)]
    if len(kept) == len(proto.graph.value_info):
        return proto
    copy = type(proto)()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    copy.graph.value_info.extend(kept)
    return copy


def _has_map(kind: onnx.TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _has_map(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        return _has_map(kind.optional_type.elem_type)
    return bool(kind.HasField("map_type"))


def _checked(model: ir.Model, name: str) -> ir.Model:
    graph = model.graph
    # onnx.checker wants a name, onnxruntime does not.
    graph.name = graph.name or "graph"
    if not graph.outputs:
        raise ModelError(f"{name}: the graph has no outputs, so there is nothing to compute")
    # Both names mean the standard operators; nodes are read with the shorter one.
    if "ai.onnx" in graph.opset_imports:
        version = graph.opset_imports.pop("ai.onnx")
        graph.opset_imports.setdefault("", version)
    if "" not in graph.opset_imports:
        raise ModelError(f"{name}: the model imports no standard operator set")
    try:
        graph.sort()
    except ValueError as error:
        raise ModelError(
            f"{name}: the graph has a cycle, so some node needs its own output; export it again"
        ) from error
    return model


def _check_external(model: ir.Model, name: str) -> None:
    readable: set[str] = set()
    for tensor in every_tensor(model):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        file = pathlib.Path(tensor.path)
        if not file.is_file():
            raise ModelError(
                f"{name}: the weights file {file.name} is missing; it belongs in the folder of the model"
            )
        start, length = tensor.offset or 0, tensor.length or tensor.nbytes
        size, end = file.stat().st_size, start + length
        if start < 0 or length < tensor.nbytes:
            raise ModelError(
                f"{name}: tensor {tensor.name!r} needs {tensor.nbytes} bytes, but is said to have "
                f"{length} at byte {start} of {file.name}; export the model again"
            )
        if size < end:
            raise ModelError(
                f"{name}: the weights file {file.name} ends at byte {size}, "
                f"but tensor {tensor.name!r} reaches to {end}; it is truncated"
            )
        if str(file) not in readable:
            _check_readable(tensor, name)
            readable.add(str(file))


def _check_readable(tensor: ir.ExternalTensor, name: str) -> None:
    """Raise if the weights file may not be read: onnx-ir refuses links out of the folder."""
    try:
        tensor.numpy()
        tensor.release()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{name}: the weights file {pathlib.Path(tensor.path).name} cannot be read "
            f"({_first_line(error)}); put a plain copy of it next to the model"
        ) from error


def _map_before_removing(model: ir.Model, files: Sequence[pathlib.Path]) -> None:
    """Map the tensors that live in ``files``, so that they outlast them."""
    names = {os.path.realpath(file) for file in files}
    for tensor in every_tensor(model):
        if isinstance(tensor, ir.ExternalTensor) and os.path.realpath(tensor.path) in names:
            tensor.numpy()


def _unreadable(subject: str, error: BaseException) -> str:
    return (
        f"{subject} not a readable ONNX model ({_first_line(error)}); "
        "it may be truncated, or another kind of file"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
