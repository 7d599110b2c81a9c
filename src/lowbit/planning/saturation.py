"""Which weights meet activations in kernels that add products two by two in 16 bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import onnx_ir as ir

from lowbit.config.specs import IntegerSpec, Spec
from lowbit.graph.editing import REQUANTIZED
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.geometry import LinearLayer
from lowbit.ops.weights import multiplied_weights
from lowbit.planning.plan import TensorPlan
from lowbit.planning.requests import Placement
from lowbit.targets.target import PairedSums, Target

SummedLayer: TypeAlias = tuple[ir.Node, LinearLayer | str]
"""A node and the geometry of its weight, or why that is not known."""


def within_pairs(
    rows: Iterable[TensorPlan], placement: Placement, graph: ir.Graph, target: Target
) -> tuple[TensorPlan, ...]:
    """Return the rows of weights, those that could saturate with what is to be kept below 16 bits."""
    sums = target.saturation
    if sums is None:
        return tuple(rows)
    specs = {
        name: r.spec for name, r in (*placement.activations.items(), *placement.weights.items())
    }
    layers = summed_in_pairs(graph, specs, sums)
    return tuple(
        _within(row, layers[row.name], sums) if row.name in layers else row for row in rows
    )


def summed_in_pairs(
    graph: ir.Graph, specs: Mapping[str, Spec], sums: PairedSums
) -> dict[str, list[SummedLayer]]:
    """Return the layers that add products in pairs, by their weights; ``specs`` are of all tensors."""
    found: dict[str, list[SummedLayer]] = {}
    for node in graph:
        if operator_name(node) not in sums.operators:
            continue
        for weight, layer in multiplied_weights(node):
            name = tensor_name(weight)
            if not _has_format(specs.get(name), sums.weight):
                continue
            if _meets(node.inputs[0], specs, sums) and (
                isinstance(layer, str) or not is_depthwise(layer)
            ):
                found.setdefault(name, []).append((node, layer))
    return found


def is_depthwise(layer: LinearLayer) -> bool:
    """Whether each channel is filtered by itself."""
    return layer.groups > 1 and layer.inputs == 1 and layer.outputs == 1


def _within(row: TensorPlan, layers: Sequence[SummedLayer], sums: PairedSums) -> TensorPlan:
    spec = row.integer
    if spec.saturation_free is False:
        return row
    if not spec.symmetric or any(isinstance(layer, str) for _, layer in layers):
        # Which weights meet is not known, or their zero point moves them: half the range is safe.
        return msgspec.structs.replace(row, spec=msgspec.structs.replace(spec, reduce_range=True))
    spec = msgspec.structs.replace(spec, saturation_free=True)
    return msgspec.structs.replace(row, spec=spec, pairs=sums.pairs)


def _has_format(spec: Spec | None, formats: tuple[IntegerFormat, ...]) -> bool:
    return isinstance(spec, IntegerSpec) and spec.format in formats and spec.group_size is None


def _meets(value: ir.Value | None, specs: Mapping[str, Spec], sums: PairedSums) -> bool:
    """Whether what a layer reads is 8-bit integers."""
    producer = None if value is None else value.producer()
    if producer is not None and producer.meta.get(REQUANTIZED):
        value = producer.inputs[0] if value is None or value.name not in specs else value
    spec = None if value is None else specs.get(tensor_name(value))
    # Those that are found at run time are uint8.
    return spec is not None and (spec.is_dynamic or _has_format(spec, sums.activation))
