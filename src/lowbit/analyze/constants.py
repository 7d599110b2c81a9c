"""What the integers of a quantized model stand for, and what they were in float.

The float weights are those of the normalized float model, found by name. A weight that equalization
has rescaled is not among them: it is known as quantized only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.analyze.quantizers import Quantizer, stripped
from lowbit.graph.session import Array
from lowbit.numerics.formats import FloatArray

_STEP, _STRAY = 1.01, 0.02
"""Rounding leaves a weight within a step; where more than a few are further off, it is another one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """One dequantized constant: its integers, what they stand for, and what it was in float."""

    codes: Array
    quantized: FloatArray
    plain: FloatArray | None


def read_constants(
    model: ir.Model, floats: ir.Model, quantizers: Sequence[Quantizer]
) -> dict[str, Constant]:
    """Return weights and biases by the names of their dequantized values."""
    values = ir.convenience.create_value_mapping(model.graph)
    known = floats.graph.initializers
    found: dict[str, Constant] = {}
    for quantizer in quantizers:
        if quantizer.kind != "weight":
            continue
        codes, weight, step = _dequantized(values[quantizer.results[0]])
        plain = _like(codes, weight, step, _float(known, quantizer.tensor))
        found[quantizer.results[0]] = Constant(codes, weight, plain)
        if quantizer.bias is not None:
            name, stored = quantizer.bias
            codes, bias, _ = _dequantized(values[name])
            was = _float(known, stripped(stored)) if plain is not None else None
            fits = was is not None and was.size == bias.size
            found[name] = Constant(
                codes, bias, was.reshape(bias.shape) if fits and was is not None else None
            )
    return found


def _float(known: Mapping[str, ir.Value], name: str) -> FloatArray | None:
    value = known.get(name)
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _dequantized(value: ir.Value) -> tuple[Array, FloatArray, FloatArray]:
    """Return the integers of a constant, what they stand for, and the step between two."""
    producer = value.producer()
    if producer is None:
        raise ValueError(f"{value.name!r} is not computed")
    data = [
        v.const_value.numpy() if v is not None and v.const_value else None for v in producer.inputs
    ]
    codes, scale = np.asarray(data[0]), np.asarray(data[1], np.float32)
    zero = np.zeros_like(scale) if len(data) < 3 else np.asarray(data[2]).astype(np.float32)
    if scale.size > 1:
        shape = [1] * codes.ndim
        shape[producer.attributes.get_int("axis", 1)] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return codes, ((codes.astype(np.float32) - zero) * scale).astype(np.float32), scale


def _like(
    codes: Array, weight: FloatArray, step: FloatArray, plain: FloatArray | None
) -> FloatArray | None:
    """Return the float weight if the quantized one was made of it.

    Equalized weights are not, even if they look alike: with some layers as they were before
    and others as after, the model computes something else.
    """
    if plain is None or plain.shape != weight.shape or not weight.size:
        return None
    inside = (codes > codes.min()) & (codes < codes.max())
    far = inside & (np.abs(plain - weight) > _STEP * step)
    return plain if np.count_nonzero(far) <= _STRAY * weight.size else None
