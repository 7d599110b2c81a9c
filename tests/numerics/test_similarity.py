"""Each figure against an implementation of other people."""

import math

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from lowbit.numerics.metrics import similarity


def standard_ssim(a, b, peak):
    return structural_similarity(
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

    assert similarity(a, b).psnr == pytest.approx(peak_signal_noise_ratio(a, b, data_range=peak))


@pytest.mark.parametrize("noise", [0.01, 0.3, 5.0])
def test_ssim_of_a_picture_is_that_of_scikit_image(noise) -> None:
    a, b = pair(29, 35, noise=noise)
    peak = float(a.max() - a.min())

    assert similarity(a, b).ssim == pytest.approx(standard_ssim(a, b, peak), rel=1e-9)


def test_ssim_of_a_batch_is_the_mean_of_its_planes() -> None:
    a, b = pair(2, 3, 17, 40)
    peak = float(a.max() - a.min())

    planes = [standard_ssim(a[n, c], b[n, c], peak) for n in range(2) for c in range(3)]
    assert similarity(a, b).ssim == pytest.approx(np.mean(planes), rel=1e-9)


def test_ssim_of_a_colour_picture_is_that_of_scikit_image() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
    b = np.clip(a + rng.normal(0, 9, a.shape), 0, 255).astype(np.uint8)

    want = structural_similarity(
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
