"""With Quark's equalization on, its presets still give Quark's model, to the last bit.

``float_cle1.onnx`` and ``float_cle_adaptive.onnx`` are Quark's float models after equalization, in
one step and until it settles. Quark's quantized model is the same file for both.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from quark_cases import DATA, differences, outputs_of, quantize_like_quark, read_quantized

from lowbit.config.quark import QUARK_PRESETS, with_cle
from lowbit.config.transforms import QuarkCle
from lowbit.graph import io
from lowbit.normalize.normalize import normalize
from lowbit.transforms import equalize

_XINT8 = QUARK_PRESETS["XINT8"]

CASES = {
    "xint8_default": with_cle(_XINT8),
    "xint8_default, adaptive": with_cle(_XINT8, QuarkCle(steps=-1)),
    "xint8_cle_clip6relu": with_cle(_XINT8, QuarkCle(replace_relu6=True)),
    "xint8_qconfig_cle": with_cle(QUARK_PRESETS["XINT8_QCONFIG"]),
    "a8w8_default": with_cle(QUARK_PRESETS["A8W8"]),
    "a16w8_default": with_cle(QUARK_PRESETS["A16W8"]),
}


def _constants(model: onnx.ModelProto) -> dict[str, list[np.ndarray]]:
    """Return weights and biases by the layer that reads them."""
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return {
        node.name.removesuffix("_out"): [stored[name] for name in node.input[1:]]
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm")
    }


@pytest.mark.parametrize(
    ("case", "config"),
    [("float_cle1", QuarkCle()), ("float_cle_adaptive", QuarkCle(steps=-1))],
)
def test_equalized_weights_are_quarks(case: str, config: QuarkCle) -> None:
    theirs = _constants(onnx.load(DATA / f"{case}.onnx"))

    ours = equalize(normalize(io.load(DATA / "float.onnx")), config)

    mine = _constants(io.to_proto(ours.model))
    assert mine.keys() == theirs.keys()
    for name, arrays in theirs.items():
        for our, their in zip(mine[name], arrays, strict=True):
            np.testing.assert_array_equal(our, their)


@pytest.mark.parametrize("case", CASES)
def test_parameters_integers_and_outputs_are_quarks(case: str) -> None:
    file = case.partition(",")[0]
    quarks = read_quantized(onnx.load(DATA / f"{file}.onnx"))
    with np.load(DATA / "outputs_cle.npz") as stored:
        expected = stored[f"{file}__noopt"]

    ours = quantize_like_quark("float", CASES[case], "calib.npz")

    mine = read_quantized(ours)
    assert differences(mine.activations, quarks.activations) == set()
    assert differences(mine.constants, quarks.constants) == set()
    outputs = outputs_of(ours, "test_input.npz")["output"]
    np.testing.assert_array_equal(outputs.reshape(expected.shape), expected)


@pytest.mark.parametrize("name", QUARK_PRESETS)
def test_presets_are_not_equalized_unless_asked(name: str) -> None:
    assert QUARK_PRESETS[name].equalization is None
