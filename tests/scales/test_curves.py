"""Errors through a curve against those of quantizing the samples themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.staged import calibrated

from lowbit.calibrate.sensitivity import Sensitivity
from lowbit.calibrate.statistics import TensorStats
from lowbit.config.config import QuantConfig
from lowbit.config.methods import MinMax, MinMse
from lowbit.config.presets import find_preset
from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.curves import Curve, Gate
from lowbit.ops.gradients import OutputPart
from lowbit.pipeline.sensitivity import measure_sensitivity
from lowbit.scales.curves import (
    CurvedDensity,
    PricedDensities,
    SensitiveCurvedDensity,
    before_curve,
    of_gate,
)
from lowbit.scales.density import Density, SensitiveDensity
from lowbit.state import Calibrated

_X = np.random.default_rng(0).normal(-2.0, 3.0, size=100_000).astype(np.float32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_GATE = Gate("g", _sigmoid)
_SWISH = Curve(lambda x: x * _sigmoid(x), _GATE)


def _rounded(x: np.ndarray, scale: float) -> np.ndarray:
    return np.clip(np.rint(x / scale), -128, 127) * scale


def _error(density: Density, scale: float) -> float:
    step = np.array([scale])
    return float(density.squared_error(step, -128 * step, 127 * step)[0])


def _density() -> Density:
    return Density.of(TensorStats.of(_X, histogram=True))


@pytest.mark.parametrize("scale", [0.15, 0.06, 0.02])
def test_the_error_before_a_curve_is_that_of_its_result(scale: float) -> None:
    x = _X.astype(np.float64)
    expected = np.mean((_SWISH.apply(_rounded(x, scale)) - _SWISH.apply(x)) ** 2)

    density = before_curve(_density(), _SWISH)

    assert _error(density, scale) == pytest.approx(expected, rel=0.02)
    assert _error(density.coarser(4), scale) == pytest.approx(expected, rel=0.05)


def test_the_error_of_a_gate_goes_with_that_of_the_product() -> None:
    x, scales = _X.astype(np.float64), (1 / 127, 1 / 160, 1 / 256)
    gate = _sigmoid(x)
    expected = np.array([np.mean((x * (_rounded(gate, s) - gate)) ** 2) for s in scales])

    found = np.array([_error(of_gate(_density(), _GATE), s) for s in scales])

    np.testing.assert_allclose(found / found[0], expected / expected[0], rtol=0.02)


def _felt(x: np.ndarray) -> tuple[np.ndarray, SensitiveCurvedDensity]:
    """Return gradients of the function's result, and the density that knows those of its argument."""
    gradient = np.random.default_rng(1).normal(size=x.shape) * (2 + np.sign(x))
    near = 1e-4
    slope = (_SWISH.apply(x + near) - _SWISH.apply(x - near)) / (2 * near)
    values = x.astype(np.float32)[None]
    sensitivity = Sensitivity.of(values, (gradient * slope).astype(np.float32)[None], rows=1)
    density = Density.of(TensorStats.of(values, histogram=True))
    return gradient, SensitiveCurvedDensity.of_sensitivity(density, sensitivity, _SWISH)


@pytest.mark.parametrize("scale", [0.3, 0.15, 0.12])
def test_errors_of_a_curve_count_as_the_outputs_feel_its_result(scale: float) -> None:
    x = np.clip(_X.astype(np.float64), -15, 15)
    gradient, density = _felt(x)
    change = _SWISH.apply(_rounded(x, scale)) - _SWISH.apply(x)

    expected = float(np.square(gradient * change).sum())

    assert _error(density, scale) == pytest.approx(expected, rel=0.1)
    assert _error(density.coarser(4), scale) == pytest.approx(expected, rel=0.15)


def test_clipping_what_is_flat_costs_what_it_changes_there() -> None:
    """Gradients are next to nothing far below zero, but all these numbers become another one."""
    x = _X.astype(np.float64)
    gradient, density = _felt(x)
    step, low, high = np.array([0.01]), np.array([-0.5]), np.array([20.0])

    (found,) = density.squared_error(step, low, high)

    change = _SWISH.apply(np.maximum(x, -0.5)) - _SWISH.apply(x)
    expected = float(np.square(gradient * change).sum())
    assert expected / 1.5 < found < expected * 1.5


def test_largest_values_that_no_gradient_was_taken_of_are_not_clipped_for_nothing() -> None:
    x = np.minimum(_X.astype(np.float64), 3.9)
    _, density = _felt(x)
    whole = Density.of(
        TensorStats.of(np.append(x, [7.0, 8.0, 9.0]).astype(np.float32), histogram=True)
    )
    seen = SensitiveCurvedDensity.of_sensitivity(whole, density.sensitivity, _SWISH)

    limits = np.array([4.0, 9.1])
    costs = seen.squared_error(np.full(2, 0.01), np.full(2, -9.0), limits)

    # The outputs feel nine times as much of positive values, as of these.
    assert costs[0] - costs[1] == pytest.approx(9 * (3**2 + 4**2 + 5**2), rel=0.1)


_SHIFTED = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,1,64,64] x) => (float[1,1,64,64] y)
<float[1,1,1,1] w = {2.0}, float[1] b = {-6.0}>
{ z = Conv(x, w, b) s = Sigmoid(z) a = Mul(z, s) y = Conv(a, w, b) }"""


def _scale(solve_text: Callable, method: object) -> float:
    spec = IntegerSpec(format=IntegerFormat.INT8, method=method)
    config = QuantConfig(
        target="ryzen-ai", activation=spec, weight=spec, bias=AccumulatorBias(), head="int8"
    )
    return float(solve_text(_SHIFTED, config).params.tensors["z"].scale)


def test_numbers_that_a_swish_leaves_nothing_of_need_no_codes(solve_text: Callable) -> None:
    # Normal about -6 with a deviation of 2: least error of the numbers themselves holds about -13.
    assert _scale(solve_text, MinMse()) < 0.7 * _scale(solve_text, MinMax())


def test_scores_are_priced_through_their_sigmoid_where_sensitivity_is_known() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,2,8,8] x) => (float[1,4,8,8] y) {
        c = Conv(x, v)
        d = Conv(c, w)
        t = Transpose<perm = [0, 1, 3, 2]>(d)
        y = Sigmoid(t)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in {"v": (3, 2, 1, 1), "w": (4, 3, 1, 1)}.items():
        array = rng.normal(0, 1, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    feeds = [{"x": rng.normal(0, 1, (1, 2, 8, 8)).astype(np.float32)} for _ in range(4)]
    state = calibrated(model, find_preset("A8W8"), feeds)
    plan = state.plan.integers()
    rows = {row.name: row for row in plan.activations()}

    def priced(state: Calibrated) -> PricedDensities:
        return PricedDensities.of(state.adapted, plan, state.stats)

    known = priced(measure_sensitivity(state, feeds, [OutputPart("y")]))

    assert isinstance(known.of_tensor(rows["c"]), SensitiveDensity)
    assert isinstance(known.of_tensor(rows["d"]), CurvedDensity)
    assert priced(state).of_tensor(rows["d"]) is None
