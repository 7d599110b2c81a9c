"""Write element types and shapes to the values of the graph, as far as they can be inferred."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.errors import ModelError
from lowbit.graph.light import light_proto


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
