"""Caches of keys and values: inputs that a call before returned as outputs, stored in integers between calls.

An input and its output have the same parameters. What was rounded once is then on the grid for good: however
often it passes through the model, it is rounded no more.
"""

from __future__ import annotations

import onnx_ir as ir

from lowbit.config.specs import Spec
from lowbit.errors import PlanError
from lowbit.graph.editing import is_float_tensor
from lowbit.graph.naming import is_cache_name, tensor_name
from lowbit.planning.requests import Placement, Request


def place_caches(placement: Placement, graph: ir.Graph, spec: Spec | None) -> None:
    """Request the caches of a model, all who read them included. Changes ``placement``."""
    if spec is None:
        return
    pairs = find_caches(graph)
    if not pairs:
        raise PlanError(
            "the cache is to be quantized, but the model has none: as many inputs called past or cache as "
            "outputs called present or cache, all of floats; export it with its cache"
        )
    for before, after in pairs:
        for name in (after, before):
            placement.activations[name] = Request(spec, 1 << 30, f"cache {before}")
        placement.caches[before] = after


def find_caches(graph: ir.Graph) -> list[tuple[str, str]]:
    """Return the inputs that are caches, each with the output it comes from: the same in order."""
    inputs, outputs = (
        [v for v in values if is_cache_name(tensor_name(v)) and is_float_tensor(v)]
        for values in (graph.inputs, graph.outputs)
    )
    computed = [v for v in outputs if v.producer() is not None]
    if len(inputs) != len(computed):
        return []
    return [(tensor_name(a), tensor_name(b)) for a, b in zip(inputs, computed, strict=True)]
