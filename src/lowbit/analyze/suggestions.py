"""Suggested fixes: changes to try, each with the line of configuration that asks for it.

The worst tensors promoted to 16 bits together are a model of their own, measured, not estimated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.analyze import causes
from lowbit.analyze.observations import Observation
from lowbit.analyze.quantizers import Constant, Quantizer
from lowbit.analyze.sensitivity import Switch
from lowbit.config.specs import IntegerSpec, TensorOverride
from lowbit.graph.editing import add_constant
from lowbit.graph.naming import MICROSOFT
from lowbit.graph.session import Array
from lowbit.numerics.formats import FloatArray, IntegerFormat
from lowbit.report.values import Cause
from lowbit.targets import Target

_OFF = np.array(False)
_FOUR_BITS, _EIGHT = 16, IntegerFormat.INT8
"""Weights with so few bits are suggested 8 bits, not 16."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """A change to try: in words, as configuration, and as settings of the switched model."""

    what: str
    config: str
    changes: Mapping[str, Array]


def activation_trials(
    quantizer: Quantizer,
    found: Sequence[Cause],
    seen: Observation,
    switch: Switch,
    target: Target,
) -> list[Trial]:
    """Return what may fix an activation, the cheapest first."""
    trials = []
    names = {cause.name for cause in found}
    scale = quantizer.scale
    if scale is not None and scale.scale.size == 1 and switch.scale is not None and seen.reach:
        whole = {switch.scale: _whole_range(quantizer, seen)}
        if causes.CLIPPED in names and not target.power_of_two:
            line = override(TensorOverride(tensor=quantizer.tensor, range=(seen.low, seen.high)))
            trials.append(Trial("the whole range, nothing clipped", line, whole))
        if causes.POWER in names:
            trials.append(Trial("a float scale (not on this target)", "--preset A8W8", whole))
    wide = _wide(target.activation_formats, signed=scale is None or scale.low < 0)
    if wide is None:
        line = override(TensorOverride(tensor=quantizer.tensor, keep="float"))
        trials.append(Trial("in float", line, {switch.name: _OFF}))
    elif scale is not None and scale.high < wide.high:
        line = wide_line(quantizer, wide)
        trials.append(Trial(f"{wide.value} (measured as float)", line, {switch.name: _OFF}))
    return trials


def weight_trials(
    quantizer: Quantizer, weight: Constant, switch: Switch, target: Target
) -> list[Trial]:
    """Return what may fix a weight, the cheapest first."""
    trials = []
    scale, plain = quantizer.scale, weight.float_value
    per_tensor = scale is not None and scale.scale.size == 1
    if (
        per_tensor
        and scale is not None
        and plain is not None
        and plain.ndim > 1
        and switch.float_value
    ):
        fine = per_channel(plain, quantizer.channel_axis, scale.high)
        spec = IntegerSpec(format=IntegerFormat(quantizer.format), per_channel=True)
        line = override(TensorOverride(tensor=quantizer.tensor, spec=spec))
        if target.per_channel and not target.power_of_two:
            changes = {switch.name: _OFF, switch.float_value: fine}
            trials.append(Trial("a scale for each channel", line, changes))
    if (
        scale is not None
        and scale.high - scale.low < _FOUR_BITS
        and _EIGHT in target.weight_formats
    ):
        spec = IntegerSpec(format=_EIGHT, per_channel=target.per_channel)
        line = override(TensorOverride(tensor=quantizer.tensor, spec=spec))
        return [*trials, Trial(f"{_EIGHT.value} (measured as float)", line, {switch.name: _OFF})]
    wide = _wide(target.weight_formats, signed=True)
    if wide is None:
        line = msgspec.json.encode({"exclude": [quantizer.consumer]}).decode()
        trials.append(Trial(f"{quantizer.op_type} in float", line, {switch.name: _OFF}))
    elif scale is not None and scale.high < wide.high:
        line = wide_line(quantizer, wide)
        trials.append(Trial(f"{wide.value} (measured as float)", line, {switch.name: _OFF}))
    return trials


def wide_line(quantizer: Quantizer, wide: IntegerFormat) -> str:
    """Return the configuration that puts a tensor to a wider format."""
    symmetric = quantizer.scale is None or not quantizer.scale.zero_point.any()
    spec = IntegerSpec(format=wide, symmetric=symmetric)
    return override(TensorOverride(tensor=quantizer.tensor, spec=spec))


def override(*rows: TensorOverride) -> str:
    """Return rows as the line of a configuration file, without what goes without saying."""
    return msgspec.json.encode({"tensors": [_brief(row) for row in rows]}).decode()


def _brief(value: msgspec.Struct) -> dict[str, object]:
    """Return the fields of a value that are not their defaults."""
    tag = value.__struct_config__.tag
    fields: dict[str, object] = {} if tag is None else {"type": tag}
    for field in msgspec.structs.fields(value):
        given = getattr(value, field.name)
        if field.required or given != field.default:
            fields[field.name] = _brief(given) if isinstance(given, msgspec.Struct) else given
    return fields


def per_channel(plain: FloatArray, axis: int, high: int) -> FloatArray:
    """Return a weight rounded with a symmetric scale for each output channel."""
    others = tuple(a for a in range(plain.ndim) if a != axis)
    reach = np.abs(plain).max(axis=others, keepdims=True)
    step = np.where(reach > 0, reach / high, 1.0)
    return np.asarray(np.rint(plain / step) * step, np.float32)


def _whole_range(quantizer: Quantizer, seen: Observation) -> Array:
    """Return the scale that holds all that was seen, at the zero point there is."""
    scale = quantizer.scale
    if scale is None:
        raise ValueError(f"{quantizer.tensor!r} has no scale")
    zero = float(scale.zero_point.reshape(-1)[0])
    above, below = scale.high - zero, zero - scale.low
    needed = max(
        seen.high / above if above > 0 else 0.0, -seen.low / below if below > 0 else 0.0, 1e-30
    )
    return np.asarray(needed, np.float32).reshape(scale.scale.shape)


def _wide(formats: Sequence[IntegerFormat], *, signed: bool) -> IntegerFormat | None:
    wanted = IntegerFormat.INT16 if signed else IntegerFormat.UINT16
    if wanted in formats:
        return wanted
    return next((f for f in formats if f in {IntegerFormat.INT16, IntegerFormat.UINT16}), None)


_FINER = 256
_DOMAIN = MICROSOFT  # has 16 bits whatever the model's opset


def promote(
    model: ir.Model, quantizers: Iterable[Quantizer], constants: Mapping[str, Constant]
) -> ir.Model:
    """Return a copy whose named tensors have scales 256 times as fine over the same range."""
    copy = model.clone()
    nodes = {node.name: node for node in copy.graph}
    copy.opset_imports.setdefault(_DOMAIN, 1)
    for quantizer in quantizers:
        for part in (quantizer.results[0], *(quantizer.bias or ())[:1]):
            constant = constants.get(part)
            if (
                quantizer.kind == "weight"
                and constant is not None
                and constant.float_value is not None
            ):
                _replace_constant(copy.graph, part, constant, quantizer)
        if quantizer.kind == "activation" and quantizer.scale is not None:
            for name in quantizer.nodes:
                _widen(copy.graph, nodes[name])
    return copy


def _widen(graph: ir.Graph, node: ir.Node) -> None:
    """Widen a Q or DQ node to 16 bits. Changes ``node``."""
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None or scale.const_value is None:
        return
    unsigned = zero is None or zero.dtype == ir.DataType.UINT8
    kind = np.uint16 if unsigned else np.int16
    old = 0 if zero is None or zero.const_value is None else zero.const_value.numpy()
    fine = np.asarray(scale.const_value.numpy() / _FINER, np.float32)
    zeros = np.asarray(np.asarray(old, np.int32) * _FINER, kind)
    prefix = f"lowbit/wide/{node.name}"
    node.replace_input_with(1, add_constant(graph, f"{prefix}/scale", fine))
    # The zero point says how many bits there are, so there must be one.
    node.resize_inputs(3)
    node.replace_input_with(2, add_constant(graph, f"{prefix}/zero", zeros))
    node.domain = _DOMAIN
    node.version = None


def _replace_constant(graph: ir.Graph, part: str, constant: Constant, quantizer: Quantizer) -> None:
    """Put the float constant, rounded to 16 bits, in place of a dequantized one."""
    plain = constant.float_value
    values = ir.convenience.create_value_mapping(graph)
    if plain is None:
        return
    if part == quantizer.results[0]:
        step = max(float(np.abs(plain).max()) / 32767, 1e-30)
        plain = np.asarray(np.rint(plain / step) * step, np.float32)
    new = add_constant(graph, f"lowbit/wide/{part}", plain)
    ir.convenience.replace_all_uses_with(values[part], new)
