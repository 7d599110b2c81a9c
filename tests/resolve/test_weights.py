from __future__ import annotations

import numpy as np
import pytest

from lowbit.config.methods import (
    Entropy,
    Method,
    MinMax,
    MinMse,
    NonOverflow,
    OutputMse,
    Percentile,
)
from lowbit.config.specs import IntegerSpec
from lowbit.errors import ConfigError
from lowbit.numerics.affine import QParams, choose_qparams, dequantize, quantize
from lowbit.numerics.formats import IntegerFormat
from lowbit.scales.importance import Importance
from lowbit.scales.weights import integers, weight_params

_RNG = np.random.default_rng(5)
_WEIGHT = (_RNG.laplace(size=(8, 4, 3, 3)) * np.geomspace(0.01, 3, 8)[:, None, None, None]).astype(
    np.float32
)


def _spec(method: Method, fmt: IntegerFormat = IntegerFormat.INT8, **options: bool) -> IntegerSpec:
    return IntegerSpec(format=fmt, method=method, **options)


def _error(x: np.ndarray, params: QParams, spec: IntegerSpec) -> float:
    limits = spec.format.limits(symmetric=spec.symmetric, reduce_range=spec.reduce_range)
    return float(np.square(x - dequantize(quantize(x, params, limits), params)).sum())


def _dense(x: np.ndarray, spec: IntegerSpec) -> float:
    """Return the least error of many symmetric ranges, by trying them."""
    top = float(np.abs(x).max())
    return min(
        _error(x, choose_qparams(-top * r, top * r, spec.format, symmetric=True), spec)
        for r in np.linspace(0.3, 1.0, 400)
    )


def test_minmax_takes_the_largest_magnitude() -> None:
    params = weight_params(_WEIGHT, _spec(MinMax()), None)

    assert float(params.scale) == np.float32(np.abs(_WEIGHT).max().astype(np.float64) * 2 / 254)


@pytest.mark.parametrize("fmt", [IntegerFormat.INT4, IntegerFormat.INT8])
def test_mse_is_as_good_as_a_dense_search(fmt: IntegerFormat) -> None:
    spec = _spec(MinMse(), fmt)

    assert _error(_WEIGHT, weight_params(_WEIGHT, spec, None), spec) <= 1.02 * _dense(_WEIGHT, spec)


@pytest.mark.parametrize("fmt", [IntegerFormat.INT4, IntegerFormat.INT8])
def test_mse_of_large_weights_is_searched_on_their_histogram(fmt: IntegerFormat) -> None:
    large = _RNG.laplace(size=60_000).astype(np.float32)
    spec = _spec(MinMse(), fmt)

    assert _error(large, weight_params(large, spec, None), spec) <= 1.05 * _dense(large, spec)


@pytest.mark.parametrize("axis", [0, 1])
def test_each_channel_has_the_parameters_it_would_have_alone(axis: int) -> None:
    for method in (MinMax(), MinMse(), Percentile(percentile=99.0)):
        params = weight_params(_WEIGHT, _spec(method), axis)

        assert params.axis == axis
        rows = np.moveaxis(_WEIGHT, axis, 0)
        alone = [float(weight_params(row, _spec(method), None).scale) for row in rows]
        np.testing.assert_allclose(params.scale, alone, rtol=1e-6)


def test_channels_of_nothing_but_zeros_take_the_smallest_scale_of_the_others() -> None:
    weight = _WEIGHT.copy()
    weight[3] = 0

    params = weight_params(weight, _spec(MinMax()), 0)

    assert params.scale[3] == np.delete(params.scale, 3).min()


def test_a_weight_of_zeros_has_scale_one() -> None:
    zeros = np.zeros((2, 3), np.float32)

    assert float(weight_params(zeros, _spec(MinMax()), None).scale) == 1.0
    assert weight_params(zeros, _spec(MinMax()), 0).scale.tolist() == [1.0, 1.0]
    assert float(weight_params(zeros, _spec(MinMse(), power_of_two=True), None).scale) == 1.0


def test_power_of_two_mse_is_the_best_power() -> None:
    spec = _spec(MinMse(), power_of_two=True)

    position = weight_params(_WEIGHT, spec, None).position

    errors = {
        p: _error(_WEIGHT, QParams(np.float32(2.0**-p), np.int8(0), IntegerFormat.INT8), spec)
        for p in range(-5, 15)
    }
    assert position == min(errors, key=lambda p: errors[p])


@pytest.mark.parametrize("method", [MinMax(), MinMse(), NonOverflow()])
def test_power_of_two_holds_for_every_channel(method: Method) -> None:
    params = weight_params(_WEIGHT, _spec(method, power_of_two=True), 0)

    assert (np.frexp(params.scale)[0] == 0.5).all()
    assert len(set(params.scale.tolist())) > 1


def test_quarks_candidates_start_at_the_nearest_power() -> None:
    data = np.array([1.4 * 127 / 128, -0.1], np.float32)

    params = weight_params(data, _spec(NonOverflow(nearest=True), power_of_two=True), None)

    assert float(params.scale) == 2.0**-7


@pytest.mark.parametrize(
    "fmt", [IntegerFormat.INT4, IntegerFormat.UINT4, IntegerFormat.INT8, IntegerFormat.UINT8]
)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("reduced", [True, False])
def test_integers_stay_within_the_limits_and_half_a_step(
    fmt: IntegerFormat, symmetric: bool, reduced: bool
) -> None:
    spec = _spec(MinMax(), fmt, symmetric=symmetric, reduce_range=reduced)
    params = weight_params(_WEIGHT, spec, None)

    codes = integers(_WEIGHT, params, spec)

    low, high = fmt.limits(symmetric=symmetric, reduce_range=reduced)
    assert low <= codes.min()
    assert codes.max() <= high
    assert np.abs(dequantize(codes, params) - _WEIGHT).max() <= float(params.scale) * 0.501


def test_methods_that_need_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="Entropy is not a method for weights"):
        weight_params(_WEIGHT, _spec(Entropy()), None)


def test_empty_constants_have_parameters() -> None:
    assert float(weight_params(np.zeros(0, np.float32), _spec(MinMse()), None).scale) == 1.0


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("size", [40, 4000])
def test_errors_count_by_importance(*, power_of_two: bool, axis: int | None, size: int) -> None:
    """Large weights that multiply nothing must not set the scale of the others."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(2, size)).astype(np.float32)
    weight[:, ::10] *= 2.2
    importance = np.ones_like(weight)
    importance[:, ::10] = 0
    spec = _spec(OutputMse(), power_of_two=power_of_two)

    def mattering(params):
        difference = dequantize(integers(weight, params, spec), params) - weight
        return float((importance * np.square(difference)).sum())

    plain = weight_params(weight, spec, axis)
    known = Importance(importance, np.zeros_like(weight), 0)
    weighed = weight_params(weight, spec, axis, known)
    dense = min(
        mattering(
            QParams(
                np.full(plain.scale.shape, s, np.float32),
                plain.zero_point,
                IntegerFormat.INT8,
                axis,
            )
        )
        for s in (2.0 ** np.arange(-9, 0) if power_of_two else np.geomspace(0.002, 0.2, 400))
    )

    # Few weights may have the same power of two in any case.
    assert mattering(weighed) <= mattering(plain) * (1.0 if power_of_two and size < 100 else 0.8)
    assert mattering(weighed) <= 1.05 * dense


@pytest.mark.parametrize("axis", [None, 0])
def test_errors_that_shift_the_output_together_are_avoided(*, axis: int | None) -> None:
    rng = np.random.default_rng(0)
    weight = rng.laplace(size=(8, 64)).astype(np.float32)
    known = Importance(np.full_like(weight, 0.01), np.ones_like(weight), 0)
    spec = _spec(OutputMse())

    def output_error(params):
        # Inputs of mean 1 and variance 0.01: a hundred thousand of them, independent.
        difference = dequantize(integers(weight, params, spec), params) - weight
        inputs = np.random.default_rng(1).normal(1.0, 0.1, (64, 100_000))
        return float(np.square(difference @ inputs).mean())

    plain, better = (weight_params(weight, spec, axis, k) for k in (None, known))

    assert output_error(better) < 0.8 * output_error(plain)


@pytest.mark.parametrize("size", [1 << 12, 1 << 19])
def test_many_outputs_are_looked_at_in_part(size: int) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(size // 16, 16)).astype(np.float32)
    known = Importance(np.ones_like(weight), np.zeros_like(weight), 0)

    found = weight_params(weight, _spec(OutputMse()), None, known)

    # With all errors alike it is the least squared error, that of all weights.
    want = weight_params(weight, _spec(MinMse()), None)
    assert float(found.scale) == pytest.approx(float(want.scale), rel=0.1)
