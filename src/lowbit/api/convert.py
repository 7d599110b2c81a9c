"""``lowbit.convert``: conversion between float formats, without any data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import onnx_ir as ir

from lowbit.api.quantize import ModelSource, planned_state, source_files
from lowbit.calibrate.statistics import Stats
from lowbit.config.presets import find_preset
from lowbit.config.specs import BLOCKS
from lowbit.emit.bodies import with_bodies
from lowbit.emit.integer_io import with_integer_io
from lowbit.errors import ConfigError, did_you_mean
from lowbit.files import check_outputs
from lowbit.graph import io
from lowbit.graph.onnx_passes import check_file, check_valid
from lowbit.normalize.precision import full_precision
from lowbit.pipeline import stages
from lowbit.planning.plan import check_fit
from lowbit.version import __version__

SINGLE = "fp32"
_PRESETS: Mapping[str, str] = MappingProxyType(
    {"bf16": "BF16", "fp16": "FP16", **{name.lower(): name for name in BLOCKS}}
)
FUNCTIONS = "functions"
INTEGER_IO = "integer-io"
FORMATS = (SINGLE, *_PRESETS, FUNCTIONS, INTEGER_IO)

# Beyond this, loading a model once to see that it loads takes more than it is worth.
_LOADED_BELOW = 1 << 30


def convert(
    model: ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    to: str,
    casts: bool = True,
    half_weights: bool = True,
) -> ir.Model:
    """Convert a model to another float format, without data, and check the result.

    Args:
        model: A path, the bytes of a file, or a loaded model, in float32 or float16.
        output: Where to write it.
        to: ``bf16``, ``fp16``, ``bfp16``, one of the MX formats (``mx6``, ``mxint8``,
            ``mxfp8e4m3`` ...), or ``fp32`` for the way back; ``functions`` gives AMD's named
            operators, in models that others wrote, bodies that any onnxruntime runs; ``integer-io``
            gives a quantized model the integers of its quantized inputs and outputs, such as caches.
        casts: Write 16-bit floats as pairs of Cast, not as AMD's named operators.
        half_weights: Store weights of 16-bit floats in 16 bits.
    """
    if output is not None:
        check_outputs({"output": output}, source_files(model))
    if to not in FORMATS:
        raise ConfigError(
            f"unknown format {to!r}{did_you_mean(to, FORMATS)} (known: {', '.join(FORMATS)})"
        )
    loaded = io.load(model)
    constants = loaded.graph.initializers.values()
    outside = any(isinstance(value.const_value, ir.ExternalTensor) for value in constants)
    if to == SINGLE:
        full_precision(loaded)
        result = loaded
    elif to == FUNCTIONS:
        result = with_bodies(loaded)
    elif to == INTEGER_IO:
        result = with_integer_io(loaded)
    else:
        result = _converted(loaded, to, casts=casts, half_weights=half_weights)
    result.producer_name, result.producer_version = "lowbit", __version__
    if output is not None:
        _check_loads(result)
        # Weights that were outside the file stay so: written one by one, they need no memory.
        io.save(result, output, external_data=outside, check=check_valid)
    return result


def _check_loads(model: ir.Model) -> None:
    """Raise unless onnxruntime loads the model, if it is not too large to be loaded twice."""
    sizes = (v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if sum(sizes) <= _LOADED_BELOW:
        with io.as_file(model) as path:
            check_file(path, "the converted model")


def _converted(loaded: ir.Model, to: str, *, casts: bool, half_weights: bool) -> ir.Model:
    preset = find_preset(_PRESETS[to])
    config = msgspec.structs.replace(preset, casts=casts, half_weights=half_weights)
    planned = planned_state(loaded, config=config)
    check_fit(planned.plan, planned.adapted)
    # Nothing is calibrated: these formats have no scales that follow from data.
    calibrated = stages.with_stats(planned, Stats({}, 0))
    state = stages.emit(stages.solve(calibrated))
    stages.record_origin(state)
    return state.emitted.model
