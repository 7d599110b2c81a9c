"""Figures of agreement: each against formulas written out or an implementation of other people."""

from __future__ import annotations

import math

import numpy as np
import pytest
import skimage

from lowbit.numerics import metrics
from lowbit.numerics.metrics import (
    DISTANCES,
    SignalNoise,
    channel_decibels,
    decibels,
    similarity,
)

# One process imports SciPy's and scikit-image's modules: two seconds.
pytestmark = pytest.mark.xdist_group("scipy")


@pytest.mark.parametrize(
    ("signal", "noise", "expected"),
    [
        (100.0, 1.0, 20.0),
        (1.0, 2.0, -10 * math.log10(2)),
        (5.0, 0.0, math.inf),
        (0.0, 0.0, math.inf),
        (0.0, 3.0, -math.inf),
        (1.0, math.inf, -math.inf),
        (1.0, math.nan, -math.inf),
    ],
)
def test_a_ratio_of_powers_in_decibels(signal: float, noise: float, expected: float) -> None:
    assert decibels(signal, noise) == pytest.approx(expected)


def test_each_channel_has_its_own_sqnr() -> None:
    rng = np.random.default_rng(6)
    want = rng.normal(size=(2, 3, 5, 4))
    got = want + rng.normal(size=want.shape) * np.array([0.1, 0.01, 2.0]).reshape(1, 3, 1, 1)

    found = channel_decibels(want, got)

    for channel in range(3):
        a, b = want[:, channel], got[:, channel]
        assert found[channel] == pytest.approx(decibels((a**2).sum(), ((a - b) ** 2).sum()))


@pytest.mark.parametrize("shape", [(4, 7), (2, 513, 3), (9,)])
def test_two_axes_or_very_many_channels_count_as_one(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    want, error = rng.normal(size=shape), 0.1 * rng.normal(size=shape)

    (found,) = channel_decibels(want, want + error)

    assert found == pytest.approx(decibels((want**2).sum(), (error**2).sum()))


def test_channels_of_zeros_are_left_out_and_extremes_are_bounded() -> None:
    want = np.ones((1, 5, 2))
    want[:, 4] = 0.0
    got = want.copy()
    got[:, 1] = 1e9
    got[:, 2, 0] = np.nan
    got[:, 3, 0] = np.inf
    got[:, 4] = 7.0

    # Exact, far off, not a number, infinite; the channel of zeros has no ratio.
    assert channel_decibels(want, got).tolist() == [120.0, -20.0, -20.0, -20.0]


def test_arrays_of_unlike_shapes_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(3, 2\)"):
        similarity(np.ones((2, 3)), np.ones((3, 2)))


@pytest.mark.parametrize("size", [10, 100_000])
def test_the_ratio_is_signal_over_noise_in_decibels(size: int) -> None:
    rng = np.random.default_rng(0)
    want = rng.normal(size=size).astype(np.float32)
    got = want + rng.normal(size=size).astype(np.float32) * np.float32(0.01)

    found = SignalNoise.of(want, got)

    a, b = want.astype(np.float64), got.astype(np.float64)
    expected = 10 * math.log10((a @ a) / ((a - b) @ (a - b)))
    assert found.sqnr_db == pytest.approx(expected, abs=1e-3)
    assert found.cosine == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)), abs=1e-6)
    assert found.max_error == pytest.approx(np.abs(a - b).max(), rel=1e-5)


def test_samples_of_any_shape_add_up() -> None:
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=n), rng.normal(size=n)) for n in (3, 50, 700)]

    parts = [SignalNoise.of(a.reshape(-1, 1), b.reshape(-1, 1)) for a, b in pairs]
    together = parts[0] | parts[1] | parts[2]

    whole = SignalNoise.of(*(np.concatenate(arrays) for arrays in zip(*pairs, strict=True)))
    assert together.sqnr_db == pytest.approx(whole.sqnr_db)
    assert together.max_error == whole.max_error


def test_equal_tensors_have_an_infinite_ratio() -> None:
    x = np.arange(5.0)

    assert SignalNoise.of(x, x).sqnr_db == math.inf
    assert SignalNoise.of(x, x).cosine == pytest.approx(1.0)


def test_zero_tensors_agree_and_noise_on_zero_is_the_worst() -> None:
    zero, one = np.zeros(4), np.ones(4)

    assert SignalNoise.of(zero, zero).cosine == 1.0
    assert SignalNoise.of(zero, one).cosine == 0.0
    assert SignalNoise.of(zero, one).sqnr_db == -math.inf


@pytest.mark.parametrize("size", [8, 50_000])
def test_a_result_that_is_not_a_number_is_the_worst(size: int) -> None:
    got = np.ones(size, np.float32)
    got[3] = np.nan

    assert SignalNoise.of(np.ones(size, np.float32), got).sqnr_db == -math.inf


def test_squares_beyond_single_precision_are_summed_in_double() -> None:
    want = np.full(50_000, 1e25, np.float32)

    assert SignalNoise.of(want, want * np.float32(0.99)).sqnr_db == pytest.approx(40.0, abs=0.01)


def test_empty_tensors_are_equal() -> None:
    assert SignalNoise.of(np.zeros(0), np.zeros(0)).sqnr_db == math.inf


def _outputs(seed):
    random = np.random.default_rng(seed)
    return [[random.normal(size=(1, 7)).astype(np.float32)] for _ in range(3)]


def _by_hand(name, a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    if name == "l2":
        return np.linalg.norm(a - b)
    if name == "cosine":
        return 1 - (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
    if name == "sqnr":
        return -10 * np.log10(np.mean(a**2) / np.mean((a - b) ** 2))
    if name == "psnr":
        return -20 * np.log10(np.abs(a).max()) + 10 * np.log10(np.mean((a - b) ** 2))
    p, q = a - min(a.min(), 0), b - min(b.min(), 0)
    p, q = p / p.sum(), q / q.sum()
    return np.sum(p * np.log((p + 1e-10) / (q + 1e-10)))


@pytest.mark.parametrize("name", ["l2", "kl", "cosine", "sqnr", "psnr"])
def test_each_is_the_mean_over_samples(name):
    want, got = _outputs(1), _outputs(2)
    expected = np.mean([_by_hand(name, a[0], b[0]) for a, b in zip(want, got, strict=True)])
    assert DISTANCES[name](want, got) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", DISTANCES)
def test_equal_outputs_are_nearest(name):
    want, got = _outputs(1), _outputs(2)
    assert DISTANCES[name](want, want) < DISTANCES[name](want, got)
    assert np.isfinite(DISTANCES[name](want, want))


@pytest.mark.parametrize("name", DISTANCES)
def test_outputs_of_nothing_but_zeros_have_a_finite_distance(name):
    zeros = [[np.zeros((1, 4), np.float32)]]
    assert np.isfinite(DISTANCES[name](zeros, zeros))


def test_as_many_samples_are_wanted():
    with pytest.raises(ValueError, match="zip"):
        DISTANCES["l2"](_outputs(1), _outputs(1)[:2])


def standard_ssim(a, b, peak):
    return skimage.metrics.structural_similarity(
        a, b, data_range=peak, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )


def pair(*shape, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=shape).cumsum(axis=-1)
    return a, a + noise * rng.normal(size=shape)


@pytest.mark.parametrize("shape", [(1000,), (24, 31), (3, 16, 20), (2, 3, 17, 40), (1, 1, 1, 64)])
def test_psnr_is_that_of_scikit_image(shape) -> None:
    a, b = pair(*shape)
    peak = a.max() - a.min()

    assert similarity(a, b).psnr == pytest.approx(
        skimage.metrics.peak_signal_noise_ratio(a, b, data_range=peak)
    )


@pytest.mark.parametrize("noise", [0.01, 0.3, 5.0])
def test_ssim_of_an_image_is_that_of_scikit_image(noise) -> None:
    a, b = pair(29, 35, noise=noise)
    peak = float(a.max() - a.min())

    assert similarity(a, b).ssim == pytest.approx(standard_ssim(a, b, peak), rel=1e-9)


def test_ssim_of_a_batch_is_the_mean_of_its_planes() -> None:
    a, b = pair(2, 3, 17, 40)
    peak = float(a.max() - a.min())

    planes = [standard_ssim(a[n, c], b[n, c], peak) for n in range(2) for c in range(3)]
    assert similarity(a, b).ssim == pytest.approx(np.mean(planes), rel=1e-9)


def test_ssim_of_a_colour_image_is_that_of_scikit_image() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
    b = np.clip(a + rng.normal(0, 9, a.shape), 0, 255).astype(np.uint8)

    want = skimage.metrics.structural_similarity(
        a,
        b,
        channel_axis=2,
        data_range=255,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    assert similarity(a, b, 255.0).ssim == pytest.approx(want, rel=1e-6)


def test_a_row_of_numbers_has_a_window_of_one_axis() -> None:
    a, b = pair(1, 1000)
    peak = float(a.max() - a.min())

    assert similarity(a, b).ssim == pytest.approx(standard_ssim(a[0], b[0], peak), rel=1e-9)


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 64, 7, 7), (8, 10)])
def test_ssim_says_nothing_of_what_is_smaller_than_its_window(shape) -> None:
    a, b = pair(*(shape or (1,)))

    found = similarity(a.reshape(shape), b.reshape(shape))

    assert math.isnan(found.ssim)
    assert math.isfinite(found.l2)


@pytest.mark.parametrize("shape", [(7,), (4, 5), (2, 3, 4, 5)])
def test_cosine_and_distance_are_those_of_linear_algebra(shape) -> None:
    a, b = pair(*shape)

    found = similarity(a, b)

    x, y = a.ravel(), b.ravel()
    assert found.l2 == pytest.approx(np.linalg.norm(x - y))
    assert found.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_equal_arrays_are_equal_by_every_figure() -> None:
    a, _ = pair(2, 12, 12)

    found = similarity(a, a)

    assert found.cosine == pytest.approx(1)
    assert found.ssim == pytest.approx(1)
    assert (found.l2, found.psnr) == (0, math.inf)


def test_zeros_equal_zeros_and_nothing_else() -> None:
    zero = np.zeros((1, 20))

    assert similarity(zero, zero).cosine == 1
    assert similarity(zero, zero + 1).cosine == 0
    assert similarity(zero, zero + 1).psnr == -math.inf


def test_divergence_of_logits_is_the_sum_of_its_definition() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 3, 5)), random.normal(size=(2, 3, 5))
    p, q = metrics.softmax(a), metrics.softmax(b)

    assert metrics.divergence(a, b) == pytest.approx(np.sum(p * np.log(p / q), -1))
    assert metrics.divergence(a, a + 7.0) == pytest.approx(0.0, abs=1e-12)
    assert np.exp(metrics.log_softmax(a)) == pytest.approx(p)


def test_what_is_masked_in_both_is_neither_signal_nor_noise() -> None:
    want, got = np.array([1.0, 2.0, -np.inf, np.nan]), np.array([1.0, 2.5, -np.inf, np.nan])
    assert SignalNoise.of(want, got) == SignalNoise.of(want[:2], got[:2])
    assert SignalNoise.of(want, np.array([1.0, 2.0, 0.0, np.nan])).sqnr_db == -np.inf
    assert metrics.divergence(want[:3], got[:3]) == pytest.approx(
        metrics.divergence(want[:2], got[:2])
    )
    assert metrics.binary_divergence(want[:3], got[:3]) == pytest.approx(
        metrics.binary_divergence(want[:2], got[:2])
    )


def test_a_class_that_only_the_quantized_model_masks_out_is_infinitely_far() -> None:
    assert metrics.divergence(np.array([1.0, 2.0]), np.array([1.0, -np.inf])) == np.inf
