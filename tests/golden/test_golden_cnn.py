"""Quark's presets give Quark's model: every scale, zero point, stored integer and output."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from quark_cases import (
    DATA,
    differences,
    outputs_of,
    quantize_like_quark,
    read_quantized,
)

from lowbit.config.config import QuantConfig
from lowbit.config.quark import QUARK_PRESETS, quark_entropy, quark_percentile

_A8W8 = QUARK_PRESETS["A8W8"]


def _per_channel(config: QuantConfig) -> QuantConfig:
    weight = msgspec.structs.replace(config.weight, per_channel=True)
    return msgspec.structs.replace(config, weight=weight)


CASES = {
    "a8w8_nocle": _A8W8,
    "a8w8_percentile_nocle": _A8W8.with_method(quark_percentile()),
    "a8w8_percentile99.9_nocle": _A8W8.with_method(quark_percentile(99.9)),
    "a8w8_entropy_nocle": _A8W8.with_method(quark_entropy()),
    "a8w8_perchannel_nocle": _per_channel(_A8W8),
    "a8w8_nocle_opset21": _A8W8,
    "a8w8_qconfig": QUARK_PRESETS["A8W8_QCONFIG"],
    "a16w8_nocle": QUARK_PRESETS["A16W8"],
    "a16w8_nocle_opset21": QUARK_PRESETS["A16W8"],
    "int8_cnn_default_nocle": QUARK_PRESETS["INT8_CNN_DEFAULT"],
    "u8s8_aaws_nocle": QUARK_PRESETS["U8S8_AAWS"],
    "s8s8_aaws_nocle": QUARK_PRESETS["S8S8_AAWS"],
    "xint8_nocle": QUARK_PRESETS["XINT8"],
    "xint8_nonoverflow_nocle": QUARK_PRESETS["XINT8_NONOVERFLOW"],
    "xint8_nocle_opset21": QUARK_PRESETS["XINT8"],
    "xint8_qconfig": QUARK_PRESETS["XINT8_QCONFIG"],
    "vint8_nocle": QUARK_PRESETS["VINT8"],
}


@pytest.mark.parametrize("case", CASES)
def test_parameters_integers_and_outputs_are_quarks(case: str) -> None:
    source = "float_opset21" if case.endswith("opset21") else "float"
    theirs = onnx.load(DATA / f"{case}.onnx")
    with np.load(DATA / "outputs.npz") as stored:
        expected = stored[f"{case}__noopt"]

    ours = quantize_like_quark(source, CASES[case], "calib.npz")

    mine, quarks = read_quantized(ours), read_quantized(theirs)
    assert len(quarks.constants) >= 14
    assert differences(mine.activations, quarks.activations) == set()
    assert differences(mine.constants, quarks.constants) == set()
    np.testing.assert_array_equal(
        outputs_of(ours, "test_input.npz")["output"].reshape(expected.shape), expected
    )
    onnx.checker.check_model(ours, full_check=True)
