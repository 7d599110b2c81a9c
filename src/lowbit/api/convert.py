"""Conversion between float formats, without any data: nothing here has to be calibrated."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.files import config_json
from lowbit.config.presets import find_preset
from lowbit.config.specs import BLOCKS
from lowbit.emit.emit import emit_qdq
from lowbit.errors import ConfigError, did_you_mean
from lowbit.graph import io
from lowbit.graph.check import check_file, check_valid
from lowbit.normalize.precision import full_precision
from lowbit.pipeline.preparing import ModelSource, prepare
from lowbit.planning import make_plan
from lowbit.planning.plan import check_fit
from lowbit.scales.solve import resolve
from lowbit.scales.stored import nearest
from lowbit.version import __version__

SINGLE = "fp32"
_PRESETS: Mapping[str, str] = MappingProxyType(
    {"bf16": "BF16", "fp16": "FP16", **{name.lower(): name for name in BLOCKS}}
)
FORMATS = (SINGLE, *_PRESETS)

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
            ``mxfp8e4m3`` ...), or ``fp32`` for the way back.
        casts: Write 16-bit floats as pairs of Cast, not as AMD's named operators.
        half_weights: Store weights of 16-bit floats in 16 bits.
    """
    if output is not None:
        io.check_writable(output)
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
    else:
        preset = find_preset(_PRESETS[to])
        result = _written(
            loaded, msgspec.structs.replace(preset, casts=casts, half_weights=half_weights)
        )
    result.producer_name, result.producer_version = "lowbit", __version__
    if output is not None:
        _check_loads(result)
        # Weights that were outside the file stay so: written one by one, they need no memory.
        io.save(result, output, beside=outside)
        check_valid(pathlib.Path(output))
    return result


def _check_loads(model: ir.Model) -> None:
    """Raise unless onnxruntime loads the model, if it is not too large to be loaded twice."""
    sizes = (v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if sum(sizes) <= _LOADED_BELOW:
        with io.as_file(model) as path:
            check_file(path)


def _written(loaded: ir.Model, config: QuantConfig) -> ir.Model:
    ready = prepare(loaded, config)
    plan = make_plan(ready.adapted, config, ready.target)
    check_fit(plan, ready.adapted)
    params = resolve(ready.adapted, plan, Stats({}, 0), ready.target)
    result = emit_qdq(
        ready.adapted,
        plan,
        params,
        nearest(ready.adapted, plan, params),
        casts=config.casts,
        half_weights=config.half_weights,
    )
    result.metadata_props.update(
        {
            "lowbit.version": __version__,
            "lowbit.preset": plan.preset,
            "lowbit.target": plan.target,
            "lowbit.config": config_json(config),
        }
    )
    return result
