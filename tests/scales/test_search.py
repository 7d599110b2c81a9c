"""The scale of least error against a dense search on the samples themselves."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.calibrate.statistics import TensorStats
from lowbit.config.methods import MinMse
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import QParams, dequantize, quantize, range_qparams
from lowbit.numerics.formats import IntegerFormat
from lowbit.scales.density import Density
from lowbit.scales.search import (
    best_params,
    code_range,
    error_of,
    power_of_two_candidates,
    power_of_two_errors,
)

_RNG = np.random.default_rng(7)
_DATA = {
    "normal": _RNG.normal(size=50_000),
    "relu": np.maximum(_RNG.normal(size=50_000), 0),
    "laplace": _RNG.laplace(size=50_000),
    "shifted": _RNG.normal(3.0, 1.0, size=50_000),
    "outliers": np.concatenate([_RNG.normal(size=49_990), _RNG.normal(size=10) * 40]),
}


def _spec(fmt: IntegerFormat, *, symmetric: bool = True, pow2: bool = False) -> IntegerSpec:
    return IntegerSpec(format=fmt, symmetric=symmetric, power_of_two=pow2, method=MinMse())


def _error(x: np.ndarray, params: QParams, spec: IntegerSpec) -> float:
    limits = spec.format.limits(symmetric=spec.symmetric)
    x = x.astype(np.float32)
    return float(np.mean((x - dequantize(quantize(x, params, limits), params)) ** 2.0))


def _best(x: np.ndarray, spec: IntegerSpec) -> QParams:
    stats = TensorStats.of(x.astype(np.float32), histogram=True)
    return best_params(Density.of(stats), stats.low, stats.high, spec)


@pytest.mark.parametrize("name", _DATA)
@pytest.mark.parametrize("fmt", [IntegerFormat.INT4, IntegerFormat.INT8, IntegerFormat.UINT8])
def test_symmetric_scales_are_as_good_as_a_dense_search(name: str, fmt: IntegerFormat) -> None:
    x, spec = _DATA[name], _spec(fmt)
    top = float(np.abs(x).max())
    dense = min(
        _error(x, range_qparams(-top * r, top * r, fmt, symmetric=True), spec)
        for r in np.linspace(0.02, 1.0, 300)
    )

    assert _error(x, _best(x, spec), spec) <= 1.03 * dense


@pytest.mark.parametrize("name", _DATA)
@pytest.mark.parametrize("fmt", [IntegerFormat.UINT4, IntegerFormat.UINT8, IntegerFormat.INT8])
def test_asymmetric_ranges_are_as_good_as_a_dense_search(name: str, fmt: IntegerFormat) -> None:
    x, spec = _DATA[name], _spec(fmt, symmetric=False)
    low, high = float(x.min()), float(x.max())
    ratios = np.linspace(0.05, 1.0, 40)
    dense = min(
        _error(x, range_qparams(low * a, high * b, fmt, symmetric=False), spec)
        for a in ratios
        for b in ratios
    )

    assert _error(x, _best(x, spec), spec) <= 1.1 * dense


@pytest.mark.parametrize("name", _DATA)
@pytest.mark.parametrize("fmt", [IntegerFormat.INT8, IntegerFormat.UINT8])
def test_power_of_two_scales_are_the_best_there_are(name: str, fmt: IntegerFormat) -> None:
    x, spec = _DATA[name], _spec(fmt, pow2=True)
    zero = 0 if fmt.signed else 128
    everything = {
        f: _error(x, QParams(np.float32(2.0**-f), np.asarray(zero, fmt.dtype), fmt), spec)
        for f in range(-12, 20)
    }

    assert everything[_best(x, spec).fraction_bits] <= 1.01 * min(everything.values())


def test_candidates_start_where_everything_fits() -> None:
    bits = power_of_two_candidates(-1.0, 3.0, _spec(IntegerFormat.INT8, pow2=True))

    assert 127 * 2.0 ** -bits[0] >= 3.0 > 127 * 2.0 ** -(bits[0] + 1)
    assert bits == list(range(bits[0], bits[0] + 6))


@pytest.mark.parametrize("pow2", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-30, 1e-12])
def test_tensors_too_small_for_the_histogram_keep_their_whole_range(
    pow2: bool, symmetric: bool, value: float
) -> None:
    x = np.array([value, -value / 2], np.float32)
    spec = _spec(IntegerFormat.INT8, symmetric=symmetric, pow2=pow2)

    params = _best(x, spec)

    assert float(params.scale) > 0
    if value > 1e-37:
        _, high = code_range(params, spec)
        assert high >= value * 0.99
        assert float(params.scale) <= value / 60


def test_values_beyond_the_histogram_are_not_clipped_to_its_end() -> None:
    x = (np.abs(_RNG.normal(size=2000)) * 1e20).astype(np.float32)

    _, high = code_range(_best(x, _spec(IntegerFormat.INT8)), _spec(IntegerFormat.INT8))

    assert high > 0.3 * float(x.max())


def test_the_error_of_parameters_is_that_on_the_samples() -> None:
    x, spec = _DATA["normal"], _spec(IntegerFormat.UINT8, symmetric=False)
    params = range_qparams(-2.0, 3.0, IntegerFormat.UINT8, symmetric=False)
    density = Density.of(TensorStats.of(x.astype(np.float32), histogram=True))

    assert error_of(density, params, spec) == pytest.approx(_error(x, params, spec), rel=0.02)


def test_errors_of_powers_of_two_are_those_of_their_parameters() -> None:
    x, spec = _DATA["laplace"], _spec(IntegerFormat.UINT8, pow2=True)
    density = Density.of(TensorStats.of(x.astype(np.float32), histogram=True))
    bits = [2, 3, 4, 5]

    errors = power_of_two_errors(density, bits, spec)

    for f, error in zip(bits, errors, strict=True):
        params = QParams(np.float32(2.0**-f), np.uint8(128), IntegerFormat.UINT8)
        assert error == pytest.approx(_error(x, params, spec), rel=0.02)


def test_the_code_range_is_that_of_the_limits_in_use() -> None:
    params = QParams(np.float32(0.5), np.uint8(10), IntegerFormat.UINT8)
    asymmetric = _spec(IntegerFormat.UINT8, symmetric=False)
    reduced = IntegerSpec(format=IntegerFormat.UINT8, symmetric=False, reduce_range=True)

    assert code_range(params, asymmetric) == (-5.0, 122.5)
    assert code_range(params, reduced) == (-5.0, 58.5)
