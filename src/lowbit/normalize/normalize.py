"""Bring a model into the one form the rest of the package accepts.

Afterwards: one float type (float32), an operator set of at least 13, no Constant nodes, no
functions, no Identity or Dropout, BatchNormalization and constant factors and offsets folded where
they can be, an Einsum with a constant a MatMul, every node and value named, every value's element
type known, nodes in order, no stack traces of an exporter. A node keeps the name its user knows.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from lowbit.errors import ModelError
from lowbit.graph.memory import garbage_collection_paused
from lowbit.graph.naming import answer_to, name_everything, names_of, tensor_name
from lowbit.graph.nesting import every_graph, every_node
from lowbit.graph.onnx_passes import infer_anew, infer_types, require_opset
from lowbit.graph.session import Feed, session
from lowbit.graph.soundness import check_calls
from lowbit.normalize.conditions import fold_conditions
from lowbit.normalize.einsum import einsum_to_matmul
from lowbit.normalize.export_traces import drop_export_traces
from lowbit.normalize.fold_affine import fold_affine, fold_gemm_factors
from lowbit.normalize.fused_attention import separate_projections
from lowbit.normalize.precision import single_precision
from lowbit.normalize.simplify import (
    decompose_hardswish,
    drop_duplicates,
    drop_identities,
    explicit_attributes,
    fold_constants,
)
from lowbit.normalize.size_names import forget_placeholders
from lowbit.ops.quantizing import QUANTIZED

# What onnx-ir copies from a call to the nodes that take its place.
_CALL = "lowbit.call"


def inline_functions(model: ir.Model) -> None:
    """Leave no function in the model, and no call. Changes ``model``."""
    if not model.functions:
        return
    check_calls(model)
    for node in model.graph.all_nodes():
        if node.op_identifier() in model.functions:
            node.metadata_props[_CALL] = next(iter(names_of(node)), node.op_type)
    try:
        common.InlinePass()(model)
    except (ValueError, ir.passes.PassError) as error:
        cause = error.__cause__ or error
        raise ModelError(
            f"the model's functions cannot be inlined ({cause}); export it without functions"
        ) from error
    model.functions.clear()
    for node in model.graph.all_nodes():
        call = node.metadata_props.pop(_CALL, None)
        if call is not None:
            node.name = f"{call}/{node.name}"
            answer_to(node, call)


# 13 has per-channel Q/DQ and takes Clip bounds, Squeeze axes and Split sizes as inputs.
LOWEST_OPSET = 13

# The first in which an initializer need not be an input, and the one of operator set 13.
_LOWEST_IR_VERSION = 7


@garbage_collection_paused()
def normalize(model: ir.Model, sample: Feed | None = None, opset: int = 0) -> ir.Model:
    """Return the normal form of ``model``, at operator set ``opset`` or later.

    ``sample`` is run once when ranks cannot be inferred from the graph alone.
    """
    refuse_quantized(model)
    model = model.clone()
    drop_export_traces(model)
    _drop_defaults(model)
    forget_placeholders(model, sample or {})
    model.ir_version = max(model.ir_version, _LOWEST_IR_VERSION)
    inline_functions(model)
    name_everything(model)
    # Not before: onnx converts no functions.
    model = require_opset(model, max(opset, LOWEST_OPSET))
    _lift_constants(model)
    name_everything(model)
    single_precision(model)
    drop_identities(model)
    fold_constants(model)
    fold_conditions(model)
    einsum_to_matmul(model)
    fold_gemm_factors(model)
    fold_affine(model)
    decompose_hardswish(model)
    drop_duplicates(model)
    name_everything(model)
    common.RemoveUnusedNodesPass()(model)
    explicit_attributes(model)
    infer_anew(model)
    _know_types(model, sample)
    if separate_projections(model):
        infer_types(model)
    return model


def _drop_defaults(model: ir.Model) -> None:
    """Remove constants from the graph's inputs. Changes ``model``."""
    if any(v.is_initializer() for graph in every_graph(model.graph) for v in graph.inputs):
        common.RemoveInitializersFromInputsPass()(model)


def _lift_constants(model: ir.Model) -> None:
    """Leave no Constant nodes, and no constants in subgraphs. Changes ``model``."""
    if any(node.op_type == "Constant" for node in every_node(model.graph)):
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    if len(every_graph(model.graph)) > 1:
        common.LiftSubgraphInitializersToMainGraphPass()(model)


def refuse_quantized(model: ir.Model) -> None:
    """Raise for a model that is quantized already."""
    for node in every_node(model.graph):
        if node.op_type in QUANTIZED:
            where = (
                f"node {node.name!r}" if node.name else f"what computes {node.outputs[0].name!r}"
            )
            raise ModelError(
                f"the model is already quantized ({where} is a {node.op_type}); "
                "start from the float model it was made from"
            )


def _know_types(model: ir.Model, sample: Feed | None) -> None:
    """Learn from onnxruntime what operators write that onnx does not know. Changes ``model``."""
    unknown = [v for node in model.graph for v in node.outputs if v.name and v.dtype is None]
    if not unknown:
        return
    names = [tensor_name(v) for v in unknown]
    try:
        with session(model, names, name="the normalized model") as running:
            types = running.output_types
            arrays = [] if sample is None else running.run(names, sample)
    except ModelError:
        if sample is not None:
            raise
        return  # it cannot be run here, and need not: it is only planned
    for value in unknown:
        if value.name in types:
            value.type, value.shape = types[value.name]
    for value, array in zip(unknown, arrays, strict=bool(arrays)):
        if hasattr(array, "dtype"):
            value.type = value.type or ir.TensorType(ir.DataType.from_numpy(array.dtype))
            value.shape = value.shape or ir.Shape([None] * array.ndim)
    infer_types(model)
