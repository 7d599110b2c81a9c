"""External data: which files a model names, and replacing them together with the model.

A graph and its weights are two files, and only one at a time can be replaced. So new weights get a
name of their own, then the graph is switched, and only then the old weights are removed: whenever the
process ends, the graph that is there has its own weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import pathlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lowbit.errors import ModelError
from lowbit.files import sibling

if TYPE_CHECKING:
    import onnx

_ENDING = ".data"
_LETTERS = 16
PRODUCER = "lowbit"
"""The producer name in models that lowbit writes."""


def message_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a message, wherever one can be."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)
    for training in model.training_info:
        yield from _of_graph(training.initialization)
        yield from _of_graph(training.algorithm)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterator[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for sparse in attribute.sparse_tensors:
                yield from (sparse.values, sparse.indices)
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g)
            for graph in attribute.graphs:
                yield from _of_graph(graph)


def _location(tensor: onnx.TensorProto) -> str | None:
    """Return the file of a tensor's data, if it is not in the message."""
    if tensor.data_location != tensor.EXTERNAL:
        return None
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def locations(model: onnx.ModelProto) -> set[str]:
    """Return the files that a message names."""
    return {found for t in message_tensors(model) if (found := _location(t)) is not None}


def refuse_outside(model: onnx.ModelProto, name: str) -> None:
    """Raise for weights outside the model's folder: whoever made the file may not read there.

    Links that leave the folder are refused when the file is opened.
    """
    for tensor in message_tensors(model):
        location = _location(tensor)
        if location is None:
            continue
        parts = pathlib.PureWindowsPath(location)  # knows the separators of all systems
        if not location or parts.anchor or location.startswith("/") or ".." in parts.parts:
            raise ModelError(
                f"{name}: tensor {tensor.name!r} has its data in {location!r}, outside the model's "
                "folder; put the file next to the model and save it with a plain name"
            )
        _check_place(tensor, name)


def _check_place(tensor: onnx.TensorProto, name: str) -> None:
    """Raise unless the place of a tensor in its file is given in whole numbers from 0 on."""
    for entry in tensor.external_data:
        if entry.key in ("offset", "length") and not re.fullmatch(r"[0-9]{1,19}", entry.value):
            raise ModelError(
                f"{name}: tensor {tensor.name!r} has the {entry.key} {entry.value[:40]!r} in its file "
                "of weights, expected a number of bytes; export the model again"
            )


def weight_files(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the external data files of a model; none if it cannot be read."""
    if not path.is_file():  # to read a pipe would wait for ever
        return []
    try:
        names = locations(_read(path))
    except (OSError, ModelError):
        return []
    return [path.parent / name for name in sorted(names)]


def plain_name(output: pathlib.Path) -> str:
    """Return what the weights of a model are called, if that name is free."""
    return f"{_stem(output)}{_ENDING}"


def _stem(output: pathlib.Path) -> str:
    longest = f".{'0' * _LETTERS}{_ENDING}"
    return sibling(output, longest).name.removesuffix(longest)


def place_weights(graph: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """Name the weights of a temporary graph as they will be named next to the output; return the file.

    The plain name if it is free, else one by their content.
    """
    plain = plain_name(output)
    file = graph.parent / plain
    if not (output.parent / plain).exists():
        return file
    named = f"{_stem(output)}.{_content(file)}{_ENDING}"
    message = _read(graph)
    for tensor in message_tensors(message):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value == plain:
                entry.value = named
    graph.write_bytes(message.SerializeToString(deterministic=True))
    return file.rename(graph.parent / named)


def replaced_weights(output: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of weights that a graph of our making at ``output`` names."""
    own = re.compile(rf"{re.escape(_stem(output))}(\.[0-9a-f]{{{_LETTERS}}})?{re.escape(_ENDING)}")
    known = [file for file in output.parent.iterdir() if own.fullmatch(file.name)]
    if not known or not output.is_file():
        return []
    try:
        message = _read(output)
    except (OSError, ModelError):
        return []
    used = locations(message) if message.producer_name == PRODUCER else set()
    return [file for file in known if file.name in used]


def remove_unused(files: list[pathlib.Path]) -> None:
    """Remove weights that no model in their folder names any more."""
    for file in files:
        with contextlib.suppress(OSError):
            models = [path for path in file.parent.glob("*.onnx") if path.is_file()]
            if not any(_mentions(path, file.name) for path in models):
                file.unlink()


def _mentions(path: pathlib.Path, name: str) -> bool:
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(os.fsencode(name)) >= 0


def _content(file: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()[:_LETTERS]


def _read(path: pathlib.Path) -> onnx.ModelProto:
    import onnx

    try:
        return onnx.load(path, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf raises its own, undocumented kinds
        raise ModelError(f"{path} is not a readable ONNX model") from error
