"""Options on a model of about 45 kinds of operators: which tensors are quantized, and how.

The numbers were written down from models that AMD Quark 0.13 made with the same options.
"""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from helpers.quark_cases import AFTER_A_NORM, DATA, QUARK_THREADS, read_quantized, samples
from helpers.quark_helpers import BareReader, quiet
from helpers.runtime_versions import skip_before

from lowbit.pipeline import stages
from lowbit.quark.onnx import Config, LayerWiseMethod, ModelQuantizer
from lowbit.quark.onnx.quantization.config import get_default_config

QUARK = json.loads((pathlib.Path(__file__).parent / "data/ops-options-0.13.json").read_text())
_FORCE = "ForceQuantizeNoInputCheck"


def _case(preset: str, drop: str = "", options: dict | None = None, **fields: Any) -> Config:
    given = {k: v for k, v in get_default_config(preset).extra_options.items() if k != drop}
    merged = {**given, **(options or {})}
    return quiet(preset, include_cle=False, extra_options=merged, **fields)


CASES = {
    "a8w8_align": _case("A8W8", options={"AlignPool": True, "AlignPad": True, "AlignSlice": True}),
    "a8w8_all": _case("A8W8", options={"QuantizeAllOpTypes": True}),
    "a8w8_noforce": _case("A8W8", _FORCE),
    "a8w8_norelu": _case("A8W8", options={"RemoveQDQConvRelu": False}),
    "a8w8_ownbias": _case("A8W8", options={"Int32Bias": False}),
    "std_noforce": _case("INT8_CNN_DEFAULT", _FORCE),
    "xint8_noforce": _case("XINT8", _FORCE),
    "xint8_nocheck": _case("XINT8", options={"NPULimitationCheck": False}),
    "s16s8": _case("S16S8_ASWS"),
    "u16s8": _case("U16S8_AAWS"),
    "u8u8": _case("U8U8_AAWA"),
    "int16": _case("INT16_CNN_DEFAULT"),
    "tr": _case("INT8_TRANSFORMER_DEFAULT"),
    "perch": _case("INT8_CNN_DEFAULT", per_channel=True),
    "foldrelu": _case("A8W8", options={"ActivationSymmetric": False}),
    "mulAdd": _case("A8W8", options={"RemoveQDQMulAdd": True}),
    # Of several types at once, Quark passes over some by accident.
    "pass": _case("A8W8", options={"CalibPassthroughOpTypes": ["Sigmoid"]}),
    "clip": _case("XINT8", options={"ConvertClipToDPUVersion": True}),
    "lwp": _case("A8W8", calibrate_method=LayerWiseMethod.LayerWisePercentile),
}


@pytest.mark.parametrize("case", QUARK)
def test_tensors_and_their_parameters_are_quarks(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "u8u8":
        skip_before("1.23.0", "a Conv before a Clip to [-2, 2] gets a second node of its name")
    # As many threads a sample as Quark had: float sums depend on it.
    collect = functools.partial(stages.collect, threads_per_sample=QUARK_THREADS)
    monkeypatch.setattr(stages, "collect", collect)

    model = ModelQuantizer(CASES[case]).quantize_model(
        DATA / "ops_float.onnx", None, BareReader(samples("ops_calib.npz"))
    )

    ours = read_quantized(model).activations
    assert ours.keys() == QUARK[case].keys()
    for name, (scale, zero, kind) in QUARK[case].items():
        last_bit = 1e-6 if name in AFTER_A_NORM else 0.0
        np.testing.assert_allclose(ours[name][0], np.float32(scale), rtol=last_bit, err_msg=name)
        assert (ours[name][1], ours[name][1].dtype.name) == (zero, kind), name
