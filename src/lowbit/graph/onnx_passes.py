"""onnx's own tools: shape inference and operator-set conversion, and whether a file is valid.

They work on serialized messages, which end at 2 GB and cost memory long before, so weights are taken
out first. Small constants stay, since shapes and axes are read from them.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from lowbit.errors import ModelError, VerificationError
from lowbit.graph.session import Session

if TYPE_CHECKING:
    import onnx

# Shapes, axes, scales and bounds are smaller, weights larger.
_LARGEST_KEPT_BYTES = 1024


@contextlib.contextmanager
def light_proto(model: ir.Model) -> Iterator[tuple[onnx.ModelProto, Mapping[str, ir.Value]]]:
    """Yield ``model`` as a message in which weights are inputs, and those weights by name."""
    heavy = [
        value
        for value in model.graph.initializers.values()
        if value.const_value is not None
        and value.const_value.nbytes > _LARGEST_KEPT_BYTES
        and not value.is_graph_input()
        and not value.is_graph_output()
    ]
    inputs = len(model.graph.inputs)
    for value in heavy:
        _describe(value)
        del model.graph.initializers[str(value.name)]
    model.graph.inputs.extend(heavy)
    try:
        yield ir.to_proto(model), {str(value.name): value for value in heavy}
    finally:
        model.graph.inputs[inputs:] = []
        for value in heavy:
            model.graph.register_initializer(value)


def _describe(value: ir.Value) -> None:
    """Write down type and shape, which an initializer may leave to its data."""
    tensor = value.const_value
    if tensor is not None:
        value.type = ir.TensorType(tensor.dtype)
        value.shape = ir.Shape(tensor.shape.numpy())


def infer_types(model: ir.Model) -> None:
    """Infer what each operator writes. Changes ``model``.

    An operator nobody has a schema for leaves its own outputs unknown, and nothing else.
    """
    import onnx.shape_inference

    with light_proto(model) as (proto, _):
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception as error:  # onnx raises its own kinds, and plain RuntimeErrors
            raise ModelError(
                f"the model's types and shapes cannot be inferred: {_brief(error)}"
            ) from error
    known = {info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.output)}
    for node in model.graph:
        for value in node.outputs:
            if value.name in known:
                _learn(value, known[value.name])


def _learn(value: ir.Value, proto: object) -> None:
    found = ir.serde.deserialize_type_proto_for_type(proto)
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    if found is not None:
        value.type = found
    if shape is not None:
        value.shape = shape


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


OLDEST = 7


def require_opset(model: ir.Model, lowest: int) -> ir.Model:
    """Return ``model`` at operator set ``lowest`` or later; itself if it is there already."""
    version = model.opset_imports.get("", 0)
    if version >= lowest:
        return model
    if version < OLDEST:
        raise ModelError(
            f"the model is at operator set {version}; {OLDEST} is the oldest that can be "
            "converted. Export it again with a newer exporter"
        )
    try:
        converted = _convert(model, lowest)
    except Exception as error:  # the converter raises plain RuntimeErrors and its own kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ModelError(
            f"the model is at operator set {version} and could not be converted to {lowest} "
            f"({reason}); export it again at {lowest} or later"
        ) from error
    if converted.opset_imports.get("", 0) < lowest:
        raise ModelError(f"the conversion from operator set {version} to {lowest} did not happen")
    return converted


def _convert(model: ir.Model, version: int) -> ir.Model:
    import onnx.version_converter

    with light_proto(model) as (proto, heavy):
        tensors = {name: value.const_value for name, value in heavy.items()}
        message = onnx.version_converter.convert_version(proto, version)
    converted: ir.Model = ir.from_proto(message)
    _put_back(converted.graph, tensors)
    # What a message has no field for: the names nodes answer to.
    before = {node.name: node.meta for node in model.graph.all_nodes()}
    for node in converted.graph.all_nodes():
        if node.name:
            node.meta.update(before.get(node.name, {}))
    return converted


def _put_back(graph: ir.Graph, tensors: dict[str, ir.TensorProtocol | None]) -> None:
    """Turn the inputs that stand for weights into weights."""
    weights = [value for value in graph.inputs if value.name in tensors]
    others = [value for value in graph.inputs if value.name not in tensors]
    graph.inputs.clear()
    graph.inputs.extend(others)
    for value in weights:
        value.const_value = tensors[str(value.name)]
        graph.register_initializer(value)


# Beyond this, inferring shapes in full costs more memory than checking is worth.
_FULL_CHECK_BELOW = 1 << 30


def check_file(path: pathlib.Path) -> None:
    """Raise unless the file passes ``onnx.checker`` and loads with every optimization.

    That it loads and runs without any is shown by measuring it.
    """
    check_valid(path)
    try:
        Session(path, threads=1, optimize="all", name=str(path))
    except ModelError as error:
        raise VerificationError(str(error)) from error


def check_valid(path: pathlib.Path) -> None:
    """Raise unless the file passes ``onnx.checker``, which leaves weights outside it unread."""
    import onnx.checker

    try:
        onnx.checker.check_model(str(path), full_check=path.stat().st_size < _FULL_CHECK_BELOW)
    except Exception as error:  # the checker's exceptions share no public base
        raise VerificationError(f"{path} is not valid ONNX: {str(error)[:600]}") from error
