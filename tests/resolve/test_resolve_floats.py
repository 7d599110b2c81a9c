"""Scales and values of what does not become integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.specs import FloatSpec
from lowbit.errors import ModelError
from lowbit.numerics.float16 import FloatFormat
from lowbit.planning.plan import TensorPlan
from lowbit.scales.floats import float_values

_SCALED = FloatSpec(format=FloatFormat.BFLOAT16, scaled=True)
_PLAIN = FloatSpec(format=FloatFormat.BFLOAT16)
_TEXT = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {8, -2, 1, 4}> {
        m = MatMul(x, w)
        t = Transpose <perm = [0, 1]> (m)
        y = Tanh(t)
    }"""


def _config(spec: FloatSpec) -> QuantConfig:
    return QuantConfig(activation=spec, weight=spec, bias=spec, target="quark-float")


def test_scaled_tensors_are_scaled_to_their_peak(run_stages) -> None:
    stages = run_stages(_TEXT, _config(_SCALED))

    scales = stages.params.scales
    assert scales["w"] == 4.0, "the largest weight is 8, and bfloat16 is scaled to 2"
    seen = stages.stats["m"]
    assert scales["m"] == pytest.approx(max(-seen.low, seen.high) / 2)
    assert scales["t"] == scales["m"], "a transposed tensor has the numbers of the other"
    assert stages.params.tensors == {}


def test_unscaled_tensors_need_no_statistics(run_stages) -> None:
    stages = run_stages(_TEXT, _config(_PLAIN))

    assert stages.plan.observed() == ()
    assert stages.stats.samples == 0
    assert stages.params.scales == {}


def _constant(values: list[float]) -> tuple[ir.Model, TensorPlan]:
    words = ", ".join(str(v) for v in values)
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) '
        f"<float[{len(values)}] w = {{{words}}}> {{ y = Add(x, w) }}"
    )
    row = TensorPlan(name="w", role="weight", spec=_PLAIN, leader="w", observe="w", why="")
    return ir.from_onnx_text(text), row


def test_constants_stay_within_the_normal_numbers_of_bfloat16() -> None:
    values = float_values(*_constant([3.4e38, -3.4e38, 1e-40, 0.0, 1.5]))

    largest, smallest = np.float32(3.38953139e38), np.finfo(np.float32).tiny
    np.testing.assert_array_equal(values, np.array([largest, -largest, smallest, 0, 1.5], "f4"))


def test_not_a_number_is_refused() -> None:
    model, row = _constant([1.0])
    model.graph.initializers["w"].const_value = ir.tensor(np.array([np.nan], np.float32))

    with pytest.raises(ModelError, match="'w' holds NaN"):
        float_values(model, row)
