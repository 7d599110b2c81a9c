import numpy as np
import pytest

from lowbit.config.methods import Hqq, MinMax, MinMse
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import dequantize
from lowbit.numerics.formats import IntegerFormat
from lowbit.scales.weights import integers, weight_params


def _spec(method: object, *, symmetric: bool) -> IntegerSpec:
    fmt = IntegerFormat.INT4 if symmetric else IntegerFormat.UINT4
    return IntegerSpec(format=fmt, symmetric=symmetric, group_size=32, method=method)


def _difference(data: np.ndarray, spec: IntegerSpec) -> np.ndarray:
    params = weight_params(data, spec, 1)
    return data - dequantize(integers(data, params, spec), params)


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_norm_below_one_falls(*, symmetric: bool) -> None:
    data = np.random.default_rng(0).standard_t(4, size=(64, 128)).astype(np.float32)

    found = _difference(data, _spec(Hqq(), symmetric=symmetric))
    widest = _difference(data, _spec(MinMax(), symmetric=symmetric))

    assert (np.abs(found) ** 0.7).sum() < 0.99 * (np.abs(widest) ** 0.7).sum()


def test_no_group_is_worse_than_with_the_whole_range() -> None:
    data = np.random.default_rng(1).normal(size=(16, 96)).astype(np.float32)

    found, widest = (
        (np.abs(_difference(data, _spec(m, symmetric=False))) ** 0.7).reshape(16, 3, 32).sum(axis=2)
        for m in (Hqq(), MinMax())
    )

    assert (found <= widest * 1.0001).all()


def test_of_powers_of_two_the_one_of_least_squared_error_is_taken() -> None:
    data = np.random.default_rng(2).normal(size=(8, 8)).astype(np.float32)

    found, expected = (
        weight_params(
            data, IntegerSpec(format=IntegerFormat.INT8, power_of_two=True, method=m), None
        )
        for m in (Hqq(), MinMse())
    )

    assert found.scale == expected.scale


def test_groups_of_zeros_have_a_scale() -> None:
    data = np.zeros((4, 64), np.float32)
    data[0, 0] = 1.0

    params = weight_params(data, _spec(Hqq(), symmetric=False), 1)

    assert np.isfinite(params.scale).all()
    assert (params.scale > 0).all()


def test_a_part_at_a_time_gives_the_same(monkeypatch) -> None:
    data = np.random.default_rng(3).normal(size=(16, 96)).astype(np.float32)
    spec = _spec(Hqq(), symmetric=False)
    whole = weight_params(data, spec, 1)

    monkeypatch.setattr("lowbit.scales.hqq._AT_ONCE", 160)
    parts = weight_params(data, spec, 1)

    assert np.array_equal(whole.scale, parts.scale)
    assert np.array_equal(whole.zero_point, parts.zero_point)
