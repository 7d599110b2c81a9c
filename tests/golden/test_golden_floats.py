"""Quark's presets in 16-bit floats and blocks give Quark's model: every node and every output.

Quark's own files need its compiled library to run; ours run as they are, so that outputs are
compared with those stored beside the files.
"""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from quark_cases import DATA, outputs_of, quantize_like_quark, samples

from lowbit.config.config import QuantConfig
from lowbit.config.quark import QUARK_PRESETS, with_cle

CASES = {
    "bf16_nocle": QUARK_PRESETS["BF16"],
    "bf16_default": with_cle(QUARK_PRESETS["BF16"]),
    "bf16_qconfig": QUARK_PRESETS["BF16_QCONFIG"],
    "bf16_scaled_nocle": QUARK_PRESETS["BF16_SCALED"],
    "bf16_cast_nocle": QUARK_PRESETS["BF16_CAST"],
    "bf16_cast_seed": with_cle(QUARK_PRESETS["BF16_CAST"]),
    "bfp16_nocle": QUARK_PRESETS["BFP16"],
    "mxint8_nocle": QUARK_PRESETS["MXINT8"],
}

_RENAMED = "_QuantizeLinear_Input"
_OPERATORS = frozenset(
    "ExtendedQuantizeLinear ExtendedDequantizeLinear BFPQuantizeDequantize MXQuantizeDequantize "
    "Cast".split()
)


def _conversions(model: onnx.ModelProto) -> list[tuple]:
    """Return type and attributes of what reads each activation to round it, and each weight.

    Quark names folded weights otherwise, so constants are told apart by their shape alone. The
    attribute ``block_shape`` is ours alone: our function reads it.
    """
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type in _OPERATORS and not node.input[0].endswith("_QuantizeLinear_Output"):
            source = shapes.get(node.input[0], node.input[0].removesuffix(_RENAMED))
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            attributes.pop("block_shape", None)
            found.append((node.op_type, str(source), sorted(attributes.items())))
    return sorted(found)


def _expected(key: str) -> np.ndarray:
    with np.load(DATA / "outputs_float.npz") as stored:
        return stored[key]


@pytest.mark.parametrize("case", CASES)
def test_nodes_and_outputs_are_quarks(case: str) -> None:
    expected = _expected(f"{case}__noopt")

    ours = quantize_like_quark("float", CASES[case], "calib.npz")

    onnx.checker.check_model(ours, full_check=True)
    assert _conversions(ours) == _conversions(onnx.load(DATA / f"{case}.onnx"))
    got = outputs_of(ours, "test_input.npz")["output"]
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)


@pytest.mark.parametrize("case", CASES)
def test_a_plain_session_gives_the_same_with_optimizations(case: str) -> None:
    expected = _expected(f"{case}__noopt")
    ours = quantize_like_quark("float", CASES[case], "calib.npz")

    plain = ort.InferenceSession(ours.SerializeToString())

    got = np.stack([plain.run(None, feed)[0] for feed in samples("test_input.npz")])
    # Fused kernels may sum in another order, before a value is rounded: half a step of 16 bits.
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=2**-7, atol=0.05)


@pytest.mark.parametrize("case", ["bf16_nocle", "bf16_scaled_nocle", "bf16_cast_nocle"])
def test_weights_stored_in_16_bits_give_the_same_outputs(case: str) -> None:
    expected = _expected(f"{case}__noopt")
    config: QuantConfig = msgspec.structs.replace(CASES[case], half_weights=True)
    whole = quantize_like_quark("float", CASES[case], "calib.npz")

    ours = quantize_like_quark("float", config, "calib.npz")

    onnx.checker.check_model(ours, full_check=True)
    got = outputs_of(ours, "test_input.npz")["output"]
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)
    weights = sum(t.ByteSize() for t in whole.graph.initializer)
    assert sum(t.ByteSize() for t in ours.graph.initializer) < 0.65 * weights


def test_45_kinds_of_operators_in_bf16_are_quarks() -> None:
    theirs = onnx.load(DATA / "ops_bf16_nocle.onnx")

    ours = quantize_like_quark("ops_float", QUARK_PRESETS["BF16"], "ops_calib.npz")

    onnx.checker.check_model(ours, full_check=True)
    # The gate inside HardSwish is named after its node here, by an inliner's numbering in Quark.
    mine = [
        str(row).replace("hswish_o_gate", "_inlfunc_HardSwish_HS_X") for row in _conversions(ours)
    ]
    assert sorted(mine) == sorted(str(row) for row in _conversions(theirs))
    for name, got in outputs_of(ours, "ops_test_input.npz").items():
        expected = _expected(f"ops_bf16_nocle__noopt__{name}")
        np.testing.assert_array_equal(got.reshape(expected.shape), expected, err_msg=name)
