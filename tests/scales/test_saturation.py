import numpy as np
import pytest

from lowbit.config.presets import find_preset
from lowbit.scales.saturation import limited_pairs, saturation_free_scales
from lowbit.scales.weights import integers, weight_params


def _worst_sums(codes: np.ndarray) -> int:
    """Return the largest sum of two products with activations of 255, by all pairs of a row."""
    even = np.pad(codes.astype(np.int64), ((0, 0), (0, codes.shape[1] % 2)))
    pairs = even.reshape(len(codes), -1, 2)
    return int(max(255 * np.maximum(sign * pairs, 0).sum(axis=2).max() for sign in (1, -1)))


@pytest.mark.parametrize("width", [64, 65])
def test_no_two_products_exceed_16_bits(width: int) -> None:
    codes = np.random.default_rng(0).integers(-127, 128, (50, width)).astype(np.int8)

    limited = limited_pairs(codes)

    assert limited.dtype == np.int8
    assert _worst_sums(codes) > 2**15 - 1 >= _worst_sums(limited)
    assert (np.sign(limited) == np.sign(codes)).all()


def test_what_does_not_saturate_stays() -> None:
    codes = np.array([[127, 1, -100, 100, -64, -64, 127]], np.int8)

    assert limited_pairs(codes).tolist() == codes.tolist()


def test_the_scale_has_less_error_than_half_the_range() -> None:
    random = np.random.default_rng(1)
    rows = random.normal(size=(40, 128)).astype(np.float32)
    full = (np.abs(rows).max(axis=1) / 127).astype(np.float32)

    scale = saturation_free_scales(rows, full, 127)

    def error(scale: np.ndarray, largest: int) -> float:
        codes = np.clip(np.rint(rows / scale[:, None]), -largest, largest)
        return float(np.square(rows - limited_pairs(codes) * scale[:, None]).sum())

    assert (scale >= full).all()
    assert error(scale, 127) <= error(full, 127)
    assert error(scale, 127) < 0.5 * error(2 * full, 63)


@pytest.mark.parametrize("axis", [0, 1])
def test_stored_weights_are_limited_along_their_inputs(axis: int) -> None:
    data = np.random.default_rng(2).laplace(size=(64, 64)).astype(np.float32)
    spec = find_preset("DYNAMIC8").weight

    codes = integers(data, weight_params(data, spec, axis), spec)

    by_output = codes if axis == 0 else codes.T
    assert _worst_sums(by_output) <= 2**15 - 1
