"""Find offsets that center what a Relu leaves around zero.

A symmetric format of 8 bits has 127 integers for numbers that are never negative. Taken off by the layers
around it (``transforms/centering.py``), half of the range makes it 255, as a zero point would. Zero stays
exact: it is the lowest integer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec
import numpy as np

from lowbit.calibrate.statistics import Stats
from lowbit.config.specs import IntegerSpec
from lowbit.config.transforms import Rescaling
from lowbit.data.shards import Selection
from lowbit.pipeline.pipeline import Pipeline
from lowbit.planning.plan import TensorPlan
from lowbit.scales.curves import PricedDensities
from lowbit.scales.ranges import params_of
from lowbit.scales.search import best_params
from lowbit.state import Quantized, Transformed, extended
from lowbit.transforms import Context, implementation_of
from lowbit.transforms.centering import OffsetGroup, find_offset_groups

_MOST_BITS = 8
"""With more bits, rounding takes too little away to be worth it."""


def centered(pipeline: Pipeline, state: Quantized, samples: Selection) -> Quantized | None:
    """Return the model with tensors centered around zero, or ``None`` where none can be.

    Its biases are corrected: an offset times what rounding changes of the weights is an error in every output.
    ``samples`` are the samples to calibrate it on.
    """
    if not pipeline.means:
        return None
    with pipeline.clock.stage("transform"):
        found = find_offsets(state)
        if not found.offsets:
            return None
        moved = implementation_of(found).apply(state.float_model, found, Context())
        before = state.config.rescaling or Rescaling()
        rescaling = msgspec.structs.replace(
            before,
            offsets={**before.offsets, **found.offsets},
            ranges={**before.ranges, **found.ranges},
        )
        transformed = extended(
            state,
            Transformed,
            config=msgspec.structs.replace(state.config, rescaling=rescaling, bias_correction=True),
            float_model=moved.model,
            transform_notes=(*state.transform_notes, *moved.notes),
        )
    calibrated = pipeline.calibrated(pipeline.planned(transformed), lambda: samples)
    stats = _with_sensitivity(calibrated.stats, state.stats, found.ranges)
    return pipeline.finish(dataclasses.replace(calibrated, stats=stats))


def _with_sensitivity(stats: Stats, before: Stats, moved: Mapping[str, object]) -> Stats:
    """Return statistics with the sensitivity of all tensors that stayed where they were."""
    known = {
        name: before.tensors[name].sensitivity
        for name in stats.tensors
        if name in before.tensors and name not in moved
    }
    tensors = {
        name: dataclasses.replace(found, sensitivity=known.get(name))
        for name, found in stats.tensors.items()
    }
    return dataclasses.replace(stats, tensors=tensors)


def find_offsets(state: Quantized) -> Rescaling:
    """Return the offsets of the tensors that can be centered, and the ranges that they have then."""
    rows = {row.name: row for row in state.plan.activations()}
    priced = PricedDensities.of(state.adapted, state.plan.integers(), state.stats)
    narrow = {row.node for row in state.plan.biases if not row.spec.is_accumulator}
    in_float = {row.node for row in state.plan.float_nodes}
    offsets: dict[str, float] = {}
    ranges: dict[str, tuple[float, float]] = {}
    bias = state.config.bias
    if bias is not None and not bias.is_accumulator:
        return Rescaling()
    for group in find_offset_groups(state.float_model.graph):
        own = [rows[name] for name in group.tensors if name in rows]
        started = all(
            node.outputs[0].name in rows and node.name not in in_float
            for node, _ in group.activations
        )
        rounded = all(layer.node.name not in narrow for layer in group.layers)
        if not own or not started or not rounded or not all(_is_centerable(row) for row in own):
            continue
        scale = _scale(group, own, state, priced)
        if scale > 0.0:
            integers = own[0].integer.format
            offsets[group.tensors[0]] = -scale * integers.low
            ranges |= {row.name: (scale * integers.low, scale * integers.high) for row in own}
    return Rescaling(offsets=offsets, ranges=ranges)


def _is_centerable(row: TensorPlan) -> bool:
    """Whether a tensor has a symmetric format of few bits, and a scale that is chosen by its values."""
    spec = row.spec
    if not isinstance(spec, IntegerSpec) or row.range is not None or row.headroom is not None:
        return False
    signed = spec.symmetric and spec.format.signed and not spec.power_of_two
    few = spec.format.bits <= _MOST_BITS and not spec.reduce_range
    return signed and few and spec.calibration is not None and row.consumers is None


def _scale(
    group: OffsetGroup, rows: list[TensorPlan], state: Quantized, priced: PricedDensities
) -> float:
    """Return the scale of a group with all integers: the largest that the methods of its tensors choose."""
    scales = [0.0]
    for row in rows:
        seen = state.stats.tensors.get(row.name)
        if seen is None or row.leader != row.name:
            continue
        density = priced.of_tensor(row)
        spec = msgspec.structs.replace(row.integer, symmetric=False)
        params = (
            params_of(seen, spec, row.name)
            if density is None
            else best_params(density, seen.low, seen.high, spec)
        )
        scales.append(float(params.scale))
    integers = rows[0].integer.format.high - rows[0].integer.format.low
    bound = group.bound
    found = min(max(scales), float("inf") if bound is None else bound / integers)
    return float(np.float32(found))  # as it is stored, so that zero is exactly the lowest integer
