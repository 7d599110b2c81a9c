"""Put the body of each model-local function where it is called.

The nodes are named ``<call>/<node>`` and answer to the name of the call, which is what a viewer
shows and a user writes.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from lowbit.errors import ModelError
from lowbit.graph.naming import answer_to, names_of

# What onnx-ir copies from a call to the nodes that take its place.
_CALL = "lowbit.call"


def inline_functions(model: ir.Model) -> None:
    """Leave no function in the model, and no call. Changes ``model``."""
    if not model.functions:
        return
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
