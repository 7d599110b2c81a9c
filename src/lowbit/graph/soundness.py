"""Check the validity of a model when it is read; the rest of the package relies on it.

Files come from anywhere: cut off, edited, made by broken exporters or to do harm. What is wrong is
named here, once, instead of surprising some later stage.
"""

from __future__ import annotations

import contextlib
import graphlib
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.errors import LowbitError, ModelError

if TYPE_CHECKING:
    import onnx

# Exporters write a scope's path into a name; the longest seen have a few thousand characters.
_LONGEST_NAME = 20_000

# The largest language models have some ten thousand nodes once their functions are inlined.
_MOST_NODES = 500_000


def check_message(model: onnx.ModelProto, name: str) -> None:
    """Raise for names that are no names, and for values that nobody produces."""
    _check_graph(model.graph, (), name)
    for function in model.functions:
        scopes = _check_nodes(function.node, set(function.input), (), name)
        _check_produced(function.output, scopes, f"function {function.name!r}", name)


_Scopes: TypeAlias = tuple[set[str], ...]
"""The names of a graph's values, and of those of the graphs around it; a branch copies none of these."""


def _check_graph(graph: onnx.GraphProto, outer: _Scopes, name: str) -> None:
    given = {value.name for value in graph.input}
    given.update(tensor.name for tensor in graph.initializer)
    given.update(sparse.values.name for sparse in graph.sparse_initializer)
    _check_lengths(given, name)
    scopes = _check_nodes(graph.node, given, outer, name)
    _check_produced([value.name for value in graph.output], scopes, "the graph's outputs", name)


def _check_nodes(
    nodes: Iterable[onnx.NodeProto], given: set[str], outer: _Scopes, name: str
) -> _Scopes:
    """Check nodes in any order; return the names of all values there are with them."""
    scopes = (given.union(*(node.output for node in nodes)), *outer)
    for node in nodes:
        _check_lengths((node.name, node.op_type, node.domain, *node.output), name)
        what = f"node {node.name or node.op_type!r} ({node.op_type})"
        _check_produced(node.input, scopes, what, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _check_graph(attribute.g, scopes, name)
            for graph in attribute.graphs:
                _check_graph(graph, scopes, name)
    return scopes


def _check_lengths(names: Iterable[str], name: str) -> None:
    for word in names:
        if len(word) > _LONGEST_NAME:
            raise ModelError(
                f"{name}: a name in it has {len(word)} characters ({word[:40]!r}...); "
                f"{_LONGEST_NAME} are the most that are read. Export it with shorter names"
            )


def _check_produced(names: Iterable[str], scopes: _Scopes, reader: str, name: str) -> None:
    for word in names:
        if word and not any(word in known for known in scopes):
            raise ModelError(
                f"{name}: {reader} reads {word[:200]!r}, which is no input and no weight, and which "
                "no node produces; export the model again"
            )


def read_checked(tensor: ir.TensorProtoTensor, name: str) -> NDArray[Any]:
    """Return the data of a tensor; raise if they are not as many numbers as its dimensions say."""
    shape = tuple(tensor.shape.numpy())
    try:
        data = tensor.numpy()
        # NumPy takes a dimension of -1 for whatever is left.
        wrong = None if data.shape == shape else f"they have the shape {data.shape}"
    except Exception as error:  # whatever reading a malformed tensor trips over
        wrong = " ".join(str(error).split())[:200]
    if wrong is not None:
        raise ModelError(
            f"{name}: the data of tensor {tensor.name!r} do not fit its shape "
            f"{tensor.shape} and type {tensor.dtype} ({wrong}); export the model again"
        )
    return data


def check_calls(model: ir.Model) -> None:
    """Raise, before functions are inlined, for those that call themselves or grow without end."""
    functions = model.functions
    calls = {
        key: Counter(node.op_identifier() for node in function.all_nodes())
        for key, function in functions.items()
    }
    order = graphlib.TopologicalSorter(
        {key: [callee for callee in found if callee in functions] for key, found in calls.items()}
    )
    sizes: dict[tuple[str, str, str], int] = {}
    try:
        for key in order.static_order():
            sizes[key] = sum(sizes.get(c, 1) * n for c, n in calls[key].items())
    except graphlib.CycleError as error:
        raise ModelError(
            f"the model's function {error.args[1][0][1]!r} calls itself; export it without functions"
        ) from error
    total = sum(sizes.get(node.op_identifier(), 1) for node in model.graph.all_nodes())
    if total > _MOST_NODES:
        raise ModelError(
            f"the model has {total:.3g} nodes once its functions are inlined; {_MOST_NODES} are the "
            "most that are read. Export it without functions"
        )


@contextlib.contextmanager
def serialization_errors() -> Iterator[None]:
    """Name what cannot be written as ONNX, such as an attribute of no type."""
    try:
        yield
    except (OSError, LowbitError):
        raise
    except Exception as error:  # onnx-ir and protobuf raise kinds of their own
        cause = error.__cause__ or error
        words = " ".join(str(cause).split())[:400]
        raise ModelError(f"the model cannot be written as ONNX: {words}") from error


# Files that people take for models in ONNX, by their first bytes.
_OTHER_FILES: Mapping[str, Callable[[bytes], bool]] = MappingProxyType(
    {
        "a zip archive, as PyTorch (.pt, .pth) and Keras save": lambda b: b[:4] == b"PK\x03\x04",
        "an HDF5 file, as Keras saves": lambda b: b[:4] == b"\x89HDF",
        "a TensorFlow Lite model": lambda b: b[4:8] == b"TFL3",
        "a safetensors file": lambda b: b[8:10] == b'{"',
        "a Git LFS pointer": lambda b: b.startswith(b"version https://git-lfs"),
        "a web page": lambda b: b.lstrip()[:5].lower() in (b"<!doc", b"<html"),
    }
)
TO_ONNX = "export to ONNX first (torch.onnx.export, tf2onnx), or download the file itself"


def kind_of_file(path: pathlib.Path) -> str:
    """Return what a file that is no ONNX model is instead, by its first bytes; nothing if that is not known."""
    with path.open("rb") as file:
        begin = file.read(48)
    return next((kind for kind, is_it in _OTHER_FILES.items() if is_it(begin)), "")
