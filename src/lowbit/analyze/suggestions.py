"""What would mend a tensor: changes to try, each with the line of configuration that asks for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from lowbit.analyze import causes
from lowbit.analyze.constants import Constant
from lowbit.analyze.observations import Observation
from lowbit.analyze.quantizers import Quantizer
from lowbit.analyze.switches import Knobs
from lowbit.config.specs import IntegerSpec, TensorOverride
from lowbit.graph.session import Array
from lowbit.numerics.formats import FloatArray, IntegerFormat
from lowbit.report.values import Cause
from lowbit.targets import Target

_OFF = np.array(False)


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
    knobs: Knobs,
    target: Target,
) -> list[Trial]:
    """Return what may mend an activation, the cheapest first."""
    trials = []
    names = {cause.name for cause in found}
    scale = quantizer.scale
    if scale is not None and scale.scale.size == 1 and knobs.scale is not None and seen.reach:
        whole = {knobs.scale: _whole_range(quantizer, seen)}
        if causes.CLIPPED in names and not target.power_of_two:
            line = override(TensorOverride(tensor=quantizer.tensor, range=(seen.low, seen.high)))
            trials.append(Trial("the whole range, nothing clipped", line, whole))
        if causes.POWER in names:
            trials.append(Trial("a float scale (not on this target)", "--preset A8W8", whole))
    wide = _wide(target.activation_formats, signed=scale is None or scale.low < 0)
    if wide is None:
        line = override(TensorOverride(tensor=quantizer.tensor, keep="float"))
        trials.append(Trial("in float", line, {knobs.switch: _OFF}))
    elif scale is not None and scale.high < wide.high:
        line = wide_line(quantizer, wide)
        trials.append(Trial(f"{wide.value} (measured as float)", line, {knobs.switch: _OFF}))
    return trials


def weight_trials(
    quantizer: Quantizer, weight: Constant, knobs: Knobs, target: Target
) -> list[Trial]:
    """Return what may mend a weight, the cheapest first."""
    trials = []
    scale, plain = quantizer.scale, weight.plain
    per_tensor = scale is not None and scale.scale.size == 1
    if per_tensor and scale is not None and plain is not None and plain.ndim > 1 and knobs.plain:
        fine = per_channel(plain, quantizer.channel_axis, scale.high)
        spec = IntegerSpec(format=IntegerFormat(quantizer.format), per_channel=True)
        line = override(TensorOverride(tensor=quantizer.tensor, spec=spec))
        if target.per_channel and not target.power_of_two:
            changes = {knobs.switch: _OFF, knobs.plain: fine}
            trials.append(Trial("a scale for each channel", line, changes))
    wide = _wide(target.weight_formats, signed=True)
    if wide is None:
        line = msgspec.json.encode({"exclude": [quantizer.reader]}).decode()
        trials.append(Trial(f"{quantizer.op_type} in float", line, {knobs.switch: _OFF}))
    elif scale is not None and scale.high < wide.high:
        line = wide_line(quantizer, wide)
        trials.append(Trial(f"{wide.value} (measured as float)", line, {knobs.switch: _OFF}))
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
