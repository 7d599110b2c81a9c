"""onnx's own tools: shape inference and operator-set conversion, and whether a file is valid.

They work on serialized messages, which end at 2 GB and cost memory long before, so weights are taken
out first. Small constants stay, since shapes and axes are read from them.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from lowbit.errors import LowbitError, ModelError, VerificationError
from lowbit.graph import io
from lowbit.graph.contradictions import correct_shapes, has_contradictions
from lowbit.graph.narrow_types import has_float8
from lowbit.graph.session import Feed, Optimize, Session, model_inputs, session
from lowbit.graph.soundness import serialization_errors

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
        with serialization_errors():
            message = ir.to_proto(model)
        yield message, {str(value.name): value for value in heavy}
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
    known = _inferred(model)
    for node in model.graph:
        for value in node.outputs:
            if value.name in known:
                _learn(value, known[value.name])


def infer_anew(model: ir.Model) -> None:
    """Infer all of it from the inputs, whatever the file says of inner values. Changes ``model``.

    What files say of them may be wrong, which onnxruntime overlooks. It is believed only where
    nothing can be inferred, and then read as well to infer what follows.
    """
    declared = {
        value: (value.type, value.shape)
        for node in model.graph
        if node.domain == ""
        for value in node.outputs
    }
    for value in declared:
        value.type = value.shape = None
    infer_types(model)
    contradictory = has_contradictions(model.graph)
    incomplete = False
    for value, (kind, shape) in declared.items():
        incomplete = incomplete or (value.shape is None and shape is not None)
        value.type = value.type or kind
        value.shape = _joined(value.shape, shape)
    if incomplete:
        infer_types(model)
    if contradictory:
        correct_shapes(model)


def _joined(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Return the inferred shape, with declared names and sizes where nothing is known."""
    if inferred is None or declared is None or len(inferred) != len(declared):
        return inferred if inferred is not None else declared
    pairs = zip(inferred, declared, strict=True)
    return ir.Shape([theirs if _is_unknown(ours) else ours for ours, theirs in pairs])


def _is_unknown(size: int | ir.SymbolicDim) -> bool:
    # onnx calls sizes that it makes up unk__0 and so on.
    return not isinstance(size, int) and (size.value is None or size.value.startswith("unk__"))


def _inferred(model: ir.Model) -> dict[str, onnx.TypeProto]:
    import onnx.shape_inference

    with light_proto(model) as (proto, _):
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception as error:  # onnx raises its own kinds, and plain RuntimeErrors
            raise ModelError(
                f"the model's types and shapes cannot be inferred: {_brief(error)}"
            ) from error
    return {info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.output)}


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

# Before this operator set Scan had a batch axis, which the converter drops without a word.
_NEW_SCAN = 9


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
    if version < _NEW_SCAN and any(node.op_type == "Scan" for node in model.graph.all_nodes()):
        raise ModelError(
            f"the model is at operator set {version} and has a Scan, which had another meaning "
            f"before {_NEW_SCAN}; export it again at {max(lowest, _NEW_SCAN)} or later"
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
        foreign = _set_foreign_apart(proto)
        tensors = {name: value.const_value for name, value in heavy.items()}
        message = onnx.version_converter.convert_version(proto, version)
    converted: ir.Model = ir.from_proto(message)
    for node in converted.graph.all_nodes():
        if node.domain == _APART:
            node.domain = ""
    if foreign:
        converted.opset_imports.pop(_APART, None)
    _put_back(converted.graph, tensors)
    # What a message has no field for: the names nodes answer to.
    before = {node.name: node.meta for node in model.graph.all_nodes()}
    for node in converted.graph.all_nodes():
        if node.name:
            node.meta.update(before.get(node.name, {}))
    return converted


# Stands for ONNX's own domain where an operator is in it that ONNX does not have.
_APART = "lowbit.not-of-onnx"


def _set_foreign_apart(proto: onnx.ModelProto) -> bool:
    """Move what is not ONNX's to a domain of its own, which the converter leaves alone; whether any is.

    onnxruntime's fusions write operators of its own, such as SimplifiedLayerNormalization, into
    ONNX's domain. Changes ``proto``.
    """
    import onnx.defs

    foreign = [
        node
        for node in proto.graph.node
        if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type)
    ]
    for node in foreign:
        node.domain = _APART
    if foreign:
        proto.opset_import.add(domain=_APART, version=1)
    return bool(foreign)


def _put_back(graph: ir.Graph, tensors: dict[str, ir.TensorProtocol | None]) -> None:
    """Turn the inputs that stand for weights into weights."""
    weights = [value for value in graph.inputs if value.name in tensors]
    others = [value for value in graph.inputs if value.name not in tensors]
    graph.inputs.clear()
    graph.inputs.extend(others)
    for value in weights:
        value.const_value = tensors[str(value.name)]
        graph.register_initializer(value)


@contextlib.contextmanager
def malformed_refused(model: ir.Model) -> Iterator[None]:
    """Say what is wrong with a model if the body fails on one that onnxruntime does not run either.

    Every rule of ONNX is checked there already: attributes, types, shapes. So none is checked again
    in the many places that rely on it.
    """
    try:
        yield
    except LowbitError:
        raise
    except Exception:  # whatever a malformed model makes a stage trip over
        with session(model, threads=1) as running:
            feed = _zeros(model)
            if feed is not None:
                running.run(running.outputs, feed)
        raise


# Of what a sample may hold, so that trying one takes no memory to speak of.
_MOST_NUMBERS = 100_000_000


def _zeros(model: ir.Model) -> Feed | None:
    """Return a sample of zeros, if the size of every input is fixed but for the batch."""
    feed = {}
    for info in model_inputs(model):
        shape = list(info.shape or (None,))
        shape[:1] = [1] if shape and not isinstance(shape[0], int) else shape[:1]
        sizes = [size for size in shape if isinstance(size, int) and size >= 0]
        if info.shape is None or len(sizes) < len(shape) or math.prod(sizes) > _MOST_NUMBERS:
            return None
        feed[info.name] = np.zeros(sizes, info.dtype)
    return feed


# Beyond this, inferring shapes in full costs more memory than checking is worth.
_FULL_CHECK_BELOW = 1 << 30


def check_file(path: pathlib.Path, name: str = "") -> None:
    """Raise unless the file passes ``onnx.checker`` and loads with every optimization.

    That it loads and runs without any is shown by measuring it. ``name`` is what errors call it.
    """
    check_valid(path, name)
    _check_loads(path, name)


def check_like(model: ir.Model, reference: ir.Model) -> str:
    """Raise unless a quantized model loads and is as valid as its float model.

    Returns what ``onnx.checker`` says against both of them, if anything: onnxruntime runs more than
    it lets pass.
    """
    name, note = "the quantized model", ""
    with io.as_file(model) as path:
        try:
            check_valid(path, name)
        except VerificationError as error:
            with io.as_file(reference) as before:
                note = _problem(before)
            if not note:
                raise VerificationError(str(error)) from error
        _check_loads(path, name, "none" if has_float8(model) else "all")
    return note


def _check_loads(path: pathlib.Path, name: str, optimize: Optimize = "all") -> None:
    try:
        Session(path, threads=1, optimize=optimize, name=name or str(path), plan_memory=False)
    except ModelError as error:
        raise VerificationError(str(error)) from error


def check_valid(path: pathlib.Path, name: str = "") -> None:
    """Raise unless the file passes ``onnx.checker``, which leaves weights outside it unread."""
    if problem := _problem(path):
        raise VerificationError(f"{name or path} is not valid ONNX: {problem}")


def _problem(path: pathlib.Path) -> str:
    import onnx.checker

    try:
        onnx.checker.check_model(str(path), full_check=path.stat().st_size < _FULL_CHECK_BELOW)
    except Exception as error:  # the checker's exceptions share no public base
        return " ".join(str(error).split())[:600]
    return ""
