"""Parameters of whole graphs: alignment, repair, limits and biases in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.methods import MinMax, MinMse
from lowbit.config.presets import find_preset
from lowbit.config.specs import AccumulatorBias, IntegerSpec, TensorOverride
from lowbit.numerics.formats import IntegerFormat
from lowbit.scales.solve import settle_biases
from lowbit.targets import find_target

_CONCAT = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,2,4,4] x) => (float[1,4,4,4] y, float[1,2,4,4] z)
<float[2,2,1,1] w = {1.0, -2.0, 3.0, 0.5}, float[2] b = {0.5, -0.5},
 float[2,2,1,1] v = {40.0, -20.0, 30.0, 5.0}>
{
    a = Conv <kernel_shape = [1, 1]> (x, w, b)
    d = Conv <kernel_shape = [1, 1]> (x, v)
    y = Concat <axis = 1> (a, d)
    z = Conv <kernel_shape = [1, 1]> (a, w, b)
}
"""
_BIG_BIAS = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,2] x) => (float[1,2] y)
<float[2,2] w = {0.000001, 0.0000005, 0.000001, 0.0000002}, float[2] b = {90000.0, -3.0}>
{ y = Gemm <beta = 2.0> (x, w, b) }
"""


def _config(target: str, *, pow2: bool = False, **options: Any) -> QuantConfig:
    spec = IntegerSpec(format=IntegerFormat.INT8, power_of_two=pow2, method=MinMse())
    fields = {"activation": spec, "weight": spec, "bias": AccumulatorBias(), "head": "int8"}
    return QuantConfig(target=target, **{**fields, **options})


def test_aligned_tensors_agree_and_the_cost_is_told(solve_text: Callable) -> None:
    state = solve_text(_CONCAT, _config("ryzen-ai"))

    tensors = state.params.tensors
    assert tensors["a"] == tensors["d"] == tensors["y"]
    moved = {a.tensor: a for a in state.params.adjustments}
    assert moved["a"].cost_db is not None
    assert moved["a"].cost_db > 0
    assert "aligned with" in moved["a"].why


def test_accumulator_biases_follow_the_aligned_input(solve_text: Callable) -> None:
    state = solve_text(_CONCAT, _config("ryzen-ai"))

    row = next(r for r in state.plan.biases if r.input == "a")
    product = state.params.tensors["a"].scale * state.params.tensors[row.weight].scale
    assert float(state.params.biases[row.node].scale) == pytest.approx(float(product))


def test_a_bias_that_would_overflow_enlarges_the_weight_scale(solve_text: Callable) -> None:
    state = solve_text(_BIG_BIAS, _config("onnxruntime"), 0.001)

    row = state.plan.biases[0]
    scale = float(state.params.biases[row.node].scale)
    assert 2 * 90000.0 / scale <= 2**31
    assert any("would overflow int32" in a.why for a in state.params.adjustments)


def test_repaired_powers_of_two_stay_powers_of_two(solve_text: Callable) -> None:
    state = solve_text(_BIG_BIAS, _config("onnxruntime", pow2=True), 0.001)

    assert np.frexp(state.params.tensors[state.plan.biases[0].weight].scale)[0] == 0.5


def test_a_fixed_range_needs_no_statistics(solve_text: Callable) -> None:
    override = TensorOverride(tensor="x", range=(-12.7, 12.7))

    state = solve_text(_CONCAT, _config("onnxruntime", tensors=(override,)))

    assert float(state.params.tensors["x"].scale) == pytest.approx(0.1)


def test_the_datapaths_limits_move_fraction_bits_and_say_why(solve_text: Callable) -> None:
    config = msgspec.structs.replace(find_preset("XINT8"), head="int8")
    text = _CONCAT.replace("40.0, -20.0, 30.0, 5.0", "0.00000001, 0.0, 0.0, 0.0")

    state = solve_text(text, config, 1000.0)

    moved = [a for a in state.params.adjustments if "shift cut" in a.why]
    assert moved
    assert all(np.frexp(a.after)[0] == 0.5 for a in moved)


def test_settling_other_biases_changes_nothing_else(solve_text: Callable) -> None:
    config = msgspec.structs.replace(find_preset("XINT8"), head="int8")
    state = solve_text(_CONCAT, config)
    row = state.plan.biases[0]
    values = {row.node: np.array([100.0, -100.0], np.float32)}

    settled = settle_biases(
        state.adapted, state.plan, state.params, find_target("ryzen-ai-cnn"), values
    )

    assert settled.tensors == state.params.tensors
    assert settled.bias_values == values
    assert float(settled.biases[row.node].scale) > float(state.params.biases[row.node].scale)
    again = settle_biases(state.adapted, state.plan, settled, find_target("ryzen-ai-cnn"), values)
    assert again.adjustments == settled.adjustments


def test_weights_only_configurations_are_solved_without_activations(solve_text: Callable) -> None:
    weight = IntegerSpec(format=IntegerFormat.INT8, method=MinMax())

    state = solve_text(_CONCAT, _config("onnxruntime", activation=None, weight=weight, bias=None))

    assert set(state.params.tensors) == {t.name for t in state.plan.weights()}
    assert state.params.biases == {}
