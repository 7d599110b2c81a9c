"""Warnings about numbers that a 16-bit float hardly holds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import lowbit

_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,2] x) => (float[N,2] y) <float[2] w = {WEIGHT, 1}> {
        m = Mul(x, w)
        s = Abs(m)
        y = Sqrt(s)
    }"""


def _notes(preset: str, peak: float, weight: float = 2.0) -> tuple[str, ...]:
    model = onnx.parser.parse_model(_MODEL.replace("WEIGHT", str(weight)))
    data = [{"x": np.array([[peak, 0.5]], np.float32)}]
    return lowbit.quantize(model, data=data, preset=preset).report.notes


def test_float16_activations_near_65504_are_named_and_scaling_proposed() -> None:
    (note,) = _notes("FP16", 9e3)

    assert "activation 'm' reaches 1.8e+04 (1 more like it)" in note
    assert "65504" in note
    assert "FP16_SCALED" in note


def test_float16_constants_too() -> None:
    (note,) = _notes("FP16", 0.1, 2e4)

    assert note.startswith("weight 'w' reaches 2e+04, near")


@pytest.mark.parametrize("preset", ["BF16", "FP16_SCALED", "BF16_SCALED", "MXINT8"])
def test_wide_scaled_and_block_formats_are_not_concerned(preset: str) -> None:
    assert not any("overflow" in note for note in _notes(preset, 9e3))


def test_bfloat16_near_the_end_of_floats_is() -> None:
    assert any("BF16_SCALED" in note for note in _notes("BF16", 1.6e38))
