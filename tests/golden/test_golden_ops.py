"""About 45 kinds of operators: Quark's model again, but for what is listed here with its reason.

A listed difference that no longer exists fails the test as much as a new one does.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from quark_cases import (
    DATA,
    differences,
    outputs_of,
    quantize_like_quark,
    read_quantized,
    same_arrays,
)

from lowbit.config.quark import QUARK_PRESETS

# The gate inside HardSwish is named after its node here, by an inliner's numbering in Quark.
_OUR_GATE, _QUARKS_GATE = "hswish_o_gate", "_inlfunc_HardSwish_HS_X"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What differs from Quark: which activations, stored constants and outputs, and why."""

    preset: str
    activations: frozenset[str] = frozenset()
    constants: frozenset[tuple[str, int]] = frozenset()
    outputs: frozenset[str] = frozenset()
    why: str


CASES = {
    "ops_xint8_nocle": Expected(preset="XINT8", why="nothing differs"),
    "ops_a8w8_nocle": Expected(
        preset="A8W8",
        constants=frozenset({("inorm", 2)}),
        outputs=frozenset({"inorm_o"}),
        why="Quark's AlignConcat copies the Concat output's scale to its inputs (bug 7) and "
        "rescales the biases of Conv, Gemm and ConvTranspose, but not InstanceNormalization's",
    ),
    "ops_a16w8_nocle": Expected(
        preset="A16W8",
        activations=frozenset(
            {
                "gather_o",
                "maxpool_o",
                "reshape_o",
                "resize_o",
                "squeeze_o",
                "transpose_o",
                "unsq_o",
            }
        ),
        constants=frozenset({("inorm", 2)}),
        outputs=frozenset(
            {
                "gather_o",
                "inorm_o",
                "matmul_dyn_o",
                "maxpool_o",
                "relu_alone_o",
                "resize_o",
                "softmax_o",
                "squeeze_o",
            }
        ),
        why="as A8W8; and Quark's overrides for 16-bit elementwise operators stop data movement "
        "beside them from sharing its input's parameters (bug 12), which all outputs behind show",
    ),
    "ops_int8_cnn_default_nocle": Expected(
        preset="INT8_CNN_DEFAULT",
        outputs=frozenset({"clipm22_o"}),
        why="Quark drops the Clip and lets the quantizer's range clip, which ends half a step off",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_only_listed_differences_from_quark_exist(case: str) -> None:
    expected = CASES[case]
    theirs = onnx.load(DATA / f"{case}.onnx")

    ours = quantize_like_quark("ops_float", QUARK_PRESETS[expected.preset], "ops_calib.npz")

    mine, quarks = read_quantized(ours), read_quantized(theirs)
    renamed = {_QUARKS_GATE, _OUR_GATE}
    assert len(mine.activations) == len(quarks.activations)
    assert differences(mine.activations, quarks.activations) == expected.activations | renamed
    assert same_arrays(mine.activations[_OUR_GATE], quarks.activations[_QUARKS_GATE])
    assert differences(mine.constants, quarks.constants) == expected.constants
    got = outputs_of(ours, "ops_test_input.npz")
    want = outputs_of(theirs, "ops_test_input.npz")
    assert list(got) == list(want)
    unequal = {name for name in want if not np.array_equal(got[name], want[name])}
    assert unequal == expected.outputs
    for name in unequal:
        span = float(np.abs(want[name]).max())
        assert np.abs(got[name] - want[name]).max() < 0.02 * span


def test_realigned_instance_normalization_bias_means_the_same_number() -> None:
    """Where our scale of it differs from Quark's, the value does not."""
    theirs = read_quantized(onnx.load(DATA / "ops_a8w8_nocle.onnx"))

    ours = read_quantized(quantize_like_quark("ops_float", QUARK_PRESETS["A8W8"], "ops_calib.npz"))

    values = [
        codes.astype(np.float64) * scale
        for codes, scale, _ in (ours.constants["inorm", 2], theirs.constants["inorm", 2])
    ]
    step = float(ours.constants["inorm", 2][1])
    assert np.abs(values[0] - values[1]).max() <= 1.5 * step
