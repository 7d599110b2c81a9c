"""The slope of what a layer computes on the float outputs, against least squares."""

from __future__ import annotations

import numpy as np

from lowbit.refine.attenuation import Attenuation

_RANDOM = np.random.default_rng(0)


def test_the_factor_undoes_the_slope_of_each_output() -> None:
    y = _RANDOM.normal(3, 2, size=(1, 4, 50_000)).astype(np.float32)
    slopes = np.array([1.0, 0.95, 0.9, 0.8])
    computed = y * slopes[:, None] + 5 + _RANDOM.normal(size=y.shape)
    sums = Attenuation(1, 4)
    for part in np.split(np.arange(y.shape[2]), 5):
        sums.add(y[:, :, part], computed[:, :, part].astype(np.float32))

    found = sums.output_gain()[0, :, 0]

    fitted = [np.polyfit(a, b, 1)[0] for a, b in zip(y[0], computed[0], strict=True)]
    np.testing.assert_allclose(found, np.maximum(1 / np.array(fitted), 1.0), rtol=1e-3)


def test_nothing_is_made_of_outputs_that_do_not_vary_or_vary_otherwise() -> None:
    y = _RANDOM.normal(size=(1, 3, 1000)).astype(np.float32)
    y[0, 0] = 2.0
    computed = np.stack((y[0, 1], -y[0, 1], 0.01 * y[0, 2]))[None]
    sums = Attenuation(1, 3)
    sums.add(y, computed)

    found = sums.output_gain()[0, :, 0]

    np.testing.assert_allclose(found[:2], 1.0)
    assert found[2] < 1.5


def test_without_columns_nothing_is_changed() -> None:
    np.testing.assert_array_equal(Attenuation(2, 3).output_gain(), np.ones((2, 3, 1)))
