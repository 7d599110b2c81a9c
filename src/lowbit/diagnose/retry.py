"""Quantize again with what the budget advises: the only measure for weights that were tuned.

Reconstruction and bias correction fit weights to the quantizers around them. To leave a quantizer out
afterwards undoes that fit; a new run fits anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.data import Preprocessing
from lowbit.diagnose.harness import Example
from lowbit.diagnose.parts import Distance, Part, decibels
from lowbit.errors import ConfigError
from lowbit.graph.session import session
from lowbit.pipeline import Progress, quantize
from lowbit.verify.findings import Together

_CALIBRATED_ON = 64


def is_tuned(model: ir.Model) -> bool:
    """Whether the weights of a model were fitted to its quantizers."""
    config = msgspec.json.decode(model.metadata_props.get("lowbit.config", "{}"))
    return bool(config.get("refine"))


def retry(
    reference: ir.Model,
    quantized: ir.Model,
    together: Together,
    data: Any,
    preprocessing: Preprocessing | str | None,
    examples: Sequence[Example],
    parts: Sequence[Part],
    progress: Progress,
) -> Together:
    """Return ``together`` with what a new run on calibration data gives, on the same samples."""
    config = _changed(quantized, together.config)
    result = quantize(
        reference,
        data=data,
        config=config,
        limit=_CALIBRATED_ON,
        preprocessing=preprocessing,
        progress=progress,
    )
    names = list(dict.fromkeys(part.output for part in parts))
    distance = Distance(parts)
    with session(result.quantized, name="the model quantized again") as running:
        for example in examples:
            got = dict(zip(names, running.run(names, example.feed), strict=True))
            distance.add(example.want, got)
    return msgspec.structs.replace(together, retried_snr_db=decibels(distance.noise))


def _changed(model: ir.Model, line: str) -> QuantConfig:
    """Return the configuration a model was made with, and what a line changes in it."""
    stored = model.metadata_props.get("lowbit.config")
    if stored is None:
        raise ConfigError(
            "the quantized model does not say how it was made, so it cannot be made again; "
            "leave out --retry"
        )
    config = msgspec.json.decode(stored, type=QuantConfig)
    change = msgspec.convert(
        {**msgspec.to_builtins(config), **msgspec.json.decode(line)}, QuantConfig
    )
    return msgspec.structs.replace(
        change,
        tensors=(*config.tensors, *change.tensors),
        exclude=tuple(dict.fromkeys((*config.exclude, *change.exclude))),
    )
