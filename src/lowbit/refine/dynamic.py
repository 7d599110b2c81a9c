"""Models that take several samples at once, whatever batch they were exported with."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from lowbit.refine.modules import Draft


def with_dynamic_batch(draft: Draft) -> Draft:
    """Return the draft with models whose first axis is of any size."""
    return dataclasses.replace(
        draft, floats=_dynamic(draft.floats), quantized=_dynamic(draft.quantized)
    )


def _dynamic(model: ir.Model) -> ir.Model:
    model = model.clone()
    for value in model.graph.inputs:
        if not value.is_initializer() and value.shape is not None and len(value.shape) > 0:
            value.shape = ir.Shape(["batch", *tuple(value.shape)[1:]])
    for node in model.graph:
        for value in node.outputs:
            # What shapes were inferred from the old batch no longer hold.
            value.shape = None
    return model
