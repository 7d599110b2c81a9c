"""Changes of constants, and of a model as text."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from lowbit.errors import ModelError
from lowbit.graph import io
from lowbit.graph.editing import constant
from lowbit.quark.models.pairs import replace_constant


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
    """Return the model with its constants taken off the list of its inputs."""
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
