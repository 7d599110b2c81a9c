"""A loaded model made ready for planning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.config.specs import IntegerSpec, Spec
from lowbit.config.transforms import QuarkCle
from lowbit.data import InputInfo
from lowbit.graph.onnx_passes import require_opset
from lowbit.graph.session import Feed, input_dtype
from lowbit.normalize.normalize import normalize, refuse_quantized
from lowbit.planning import make_plan
from lowbit.targets import Target, find_target
from lowbit.transforms import Equalized, Levels, equalize, rotate, smooth
from lowbit.transforms.float_reference import SideBySide, side_by_side
from lowbit.transforms.requantize import insert_requantization
from lowbit.transforms.rewrites import adapt

ModelSource = Any
"""A path, the bytes of a file, an ``onnx.ModelProto`` or an ``onnx_ir.Model``."""

_FOUR_BIT_OPSET = 21


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A model made ready for planning: as loaded, as calibrated on, and as emitted from."""

    reference: ir.Model
    equalized: Equalized
    observed: ir.Model
    adapted: ir.Model
    twins: Mapping[str, str]
    config: QuantConfig
    target: Target


def prepare(
    model: ir.Model,
    config: QuantConfig,
    sample: Any = None,
    data: Iterable[Feed] | None = None,
    equalized: Equalized | None = None,
    target: Target | None = None,
) -> Prepared:
    """Normalize, equalize and smooth a loaded model, and rewrite it for its target.

    ``data`` is run, more than once perhaps, to see how far activations go; what an earlier call
    ``equalized`` is used as it is. The target is the configuration's unless given.
    """
    target = target or find_target(config.target)
    refuse_quantized(model)
    even = equalized or _equalize(model, config, target, sample, data)
    shaped = adapt(even.model, target.transforms, config.skip_rewrites)
    shaped = insert_requantization(shaped, config.requantize)
    # What stays in float does not run on the device: it keeps its own arithmetic.
    kept = {node.node for node in make_plan(shaped, config, target).float_nodes}
    adapted = adapt(shaped, target.arithmetic, config.skip_rewrites, kept)
    pair = SideBySide(shaped, {})
    if target.calibrate_arithmetic:
        pair = side_by_side(shaped, adapted)
    return Prepared(model, even, pair.model, adapted, pair.twins, config, target)


def _equalize(
    model: ir.Model, config: QuantConfig, target: Target, sample: Any, data: Iterable[Feed] | None
) -> Equalized:
    weight = config.weight
    if isinstance(weight, IntegerSpec) and (weight.format.bits == 4 or weight.group is not None):
        model = require_opset(model, _FOUR_BIT_OPSET)
    turned = rotate(normalize(model, sample), config.rotation, data)
    normal = turned.model
    kept: set[str] = set()
    if isinstance(config.equalization, QuarkCle):
        # A clone, because only that one knows for certain which of its values are inputs.
        kept = {node.node for node in make_plan(normal.clone(), config, target).float_nodes}
    even = equalize(normal, config.equalization, data, keep=kept)
    smoothed = smooth(even.model, config.smooth_quant, data, _levels(config))
    return dataclasses.replace(
        even, model=smoothed.model, notes=(*turned.notes, *even.notes, *smoothed.notes)
    )


def _levels(config: QuantConfig) -> Levels:
    weight = config.weight
    return Levels(
        activation=_largest(config.activation),
        weight=_largest(weight),
        per_channel=isinstance(weight, IntegerSpec) and weight.per_channel,
    )


def _largest(spec: Spec | None) -> int:
    """Return the largest integer of a symmetric format; block formats are as good as int8."""
    if spec is None:
        return 0
    bits = spec.format.bits if isinstance(spec, IntegerSpec) else 8
    return int((1 << (bits - 1)) - 1)


def model_inputs(model: ir.Model) -> list[InputInfo]:
    """Return what each input of a model wants to be fed."""
    return [
        InputInfo(
            name=str(value.name),
            dtype=input_dtype(value),
            shape=None
            if value.shape is None
            else tuple(d if isinstance(d, int) else d.value for d in value.shape),
        )
        for value in model.graph.inputs
        if value.name not in model.graph.initializers
    ]
