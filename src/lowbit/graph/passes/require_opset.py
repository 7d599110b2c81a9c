"""Bring a model to an operator set, or say why that cannot be done."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.errors import ModelError
from lowbit.graph import io

OLDEST = 7


def require_opset(model: ir.Model, lowest: int) -> ir.Model:
    """Return ``model`` at operator set ``lowest`` or later; itself if it is there already."""
    version = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
    if version >= lowest:
        return model
    if version < OLDEST:
        raise ModelError(
            f"the model is at operator set {version}; {OLDEST} is the oldest that can be "
            "converted. Export it again with a newer exporter"
        )
    import onnx.version_converter

    try:
        converted = ir.from_proto(
            onnx.version_converter.convert_version(io.to_proto(model), lowest)
        )
    except Exception as error:  # the converter raises plain RuntimeErrors and its own kinds
        raise ModelError(
            f"the model is at operator set {version} and could not be converted to {lowest} "
            f"({str(error).splitlines()[0][:200]}); export it again at {lowest} or later"
        ) from error
    if converted.opset_imports.get("", 0) < lowest:
        raise ModelError(f"the conversion from operator set {version} to {lowest} did not happen")
    return converted
