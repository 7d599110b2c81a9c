"""Bring a model to an operator set, or say why that cannot be done."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.errors import ModelError
from lowbit.graph.light import light_proto

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
