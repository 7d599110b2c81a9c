"""GPTQ: Quark's dictionary of parameters as a spec of weights and a refinement of lowbit's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lowbit.config.methods import MinMse
from lowbit.config.refinement import Gptq
from lowbit.config.specs import IntegerSpec, Spec
from lowbit.errors import ConfigError
from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.translate.reading import read_struct


class GptqParams(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="pascal"
):
    """The keys of the GPTQParams dictionary; without ``Bits`` weights are of the type asked for."""

    bits: int | None = None
    block_size: int = 128
    group_size: int = -1
    perc_damp: float = 0.01
    act_order: bool = False
    per_channel: bool = False
    mse: bool = msgspec.field(default=False, name="MSE")
    weight_symmetric: bool = True


_FORMATS = {4: IntegerFormat.INT4, 8: IntegerFormat.INT8}


def read_gptq(given: Mapping[str, Any], *, lenient: bool) -> GptqParams:
    """Return the parameters as a value; a key that is not one is an error."""
    return read_struct("GPTQParams", given, GptqParams, lenient=lenient)


def gptq_weight(start: Spec, params: GptqParams) -> IntegerSpec:
    """Return the spec of weights that GPTQ rounds to."""
    if not isinstance(start, IntegerSpec):
        raise QuarkConfigError(f"GPTQ rounds to integers, and weights are {start.describe()}")
    if start.power_of_two:
        raise QuarkConfigError(
            "GPTQ quantizes weights alone, with float scales: switch enable_npu_cnn off, or take "
            "AdaRound"
        )
    if params.bits not in (None, *_FORMATS):
        raise NotSupportedError(
            f"GPTQParams: Bits is {params.bits}; ONNX has integers of 4 and 8 bits for weights"
        )
    if params.group_size != -1 and params.group_size < 2:
        raise QuarkConfigError(
            f"GPTQParams: GroupSize is {params.group_size}; expected -1 (none) or at least 2"
        )
    return msgspec.structs.replace(
        start,
        format=start.format if params.bits is None else _FORMATS[params.bits],
        symmetric=params.weight_symmetric,
        per_channel=start.per_channel or params.per_channel,
        group=start.group if params.group_size == -1 else params.group_size,
        method=MinMse() if params.mse else start.method,
    )


def gptq_refinement(params: GptqParams) -> Gptq:
    """Return the refinement these parameters mean."""
    try:
        return Gptq(
            block_size=params.block_size, perc_damp=params.perc_damp, act_order=params.act_order
        )
    except ConfigError as error:
        raise QuarkConfigError(f"GPTQParams: {error}") from error
