"""One tensor's exception, in the words of onnxruntime's overrides."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from lowbit.config.methods import MinMax
from lowbit.config.specs import IntegerSpec, Spec, TensorOverride
from lowbit.errors import did_you_mean
from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.translate.blocks import float_spec, is_float
from lowbit.quark.translate.types import integer_format

_KEYS = ("quant_type", "symmetric", "reduce_range", "axis", "scale", "zero_point", "rmin", "rmax")


def override_of(name: str, entry: Any, given: Spec) -> TensorOverride:
    """Return what ``entry`` (a dictionary, or a list of one) asks for a tensor."""
    asked = _single(name, entry)
    kind = asked.get("quant_type")
    if kind is not None and is_float(kind):
        spec = float_spec(kind, MinMax(), scaled=False)
        return TensorOverride(tensor=name, spec=spec, optional=True)
    return _integers(name, asked, given)


def _integers(name: str, asked: dict[str, Any], given: Spec) -> TensorOverride:
    spec = given if isinstance(given, IntegerSpec) else IntegerSpec(format=IntegerFormat.INT8)
    if asked.get("quant_type") is not None:
        spec = msgspec.structs.replace(spec, format=integer_format(asked["quant_type"]))
    for key, field in (("symmetric", "symmetric"), ("reduce_range", "reduce_range")):
        if asked.get(key) is not None:
            spec = msgspec.structs.replace(spec, **{field: bool(asked[key])})
    if asked.get("axis") is not None:
        spec = msgspec.structs.replace(spec, per_channel=True)
    return TensorOverride(tensor=name, spec=spec, range=_range(name, asked, spec), optional=True)


def _single(name: str, entry: Any) -> dict[str, Any]:
    entries = entry if isinstance(entry, list) else [entry]
    if len(entries) != 1:
        raise NotSupportedError(
            f"TensorQuantOverrides[{name!r}] has {len(entries)} entries, one a channel; "
            "one a tensor is supported"
        )
    for key in entries[0]:
        if key not in _KEYS:
            near = did_you_mean(str(key), _KEYS)
            raise QuarkConfigError(f"TensorQuantOverrides[{name!r}] has no {key!r}{near}")
    return dict(entries[0])


def _range(name: str, asked: dict[str, Any], spec: IntegerSpec) -> tuple[float, float] | None:
    """Return the range that limits, or a scale and a zero point, mean."""
    if asked.get("rmin") is not None and asked.get("rmax") is not None:
        return float(asked["rmin"]), float(asked["rmax"])
    if asked.get("scale") is None:
        return None
    scale, zero = np.asarray(asked["scale"]), np.asarray(asked.get("zero_point", 0))
    if scale.size != 1 or zero.size != 1:
        raise NotSupportedError(
            f"TensorQuantOverrides[{name!r}] has {scale.size} scales; one is supported"
        )
    low, high = spec.format.limits(symmetric=spec.symmetric, reduce_range=spec.reduce_range)
    step, offset = float(scale.item()), int(zero.item())
    return (low - offset) * step, (high - offset) * step
