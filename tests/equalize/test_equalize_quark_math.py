"""Quark's factors on arrays alone; against its own models in ``tests/golden``."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.quark import cle as quark
from lowbit.transforms._cross_layer_math import (
    input_peaks,
    output_peaks,
    scale_inputs,
    scale_outputs,
)


def _row(*weights: float) -> np.ndarray:
    return np.float32(weights).reshape(1, 1, 1, -1)


def test_a_pair_ends_with_equal_peaks() -> None:
    rng = np.random.default_rng(0)
    head = rng.normal(size=(1, 6, 3, 9)).astype(np.float32)
    tail = rng.normal(size=(1, 4, 6, 1)).astype(np.float32)

    factors = quark.pair_factors(head, None, tail, threshold=None)
    scale_outputs(head, factors)
    scale_inputs(tail, 1 / factors)

    assert factors.dtype == np.float32
    np.testing.assert_allclose(output_peaks(head), input_peaks(tail), rtol=1e-6)


def test_small_weights_are_left_alone_below_the_threshold() -> None:
    head, tail = _row(0.1), _row(0.3)

    assert quark.pair_factors(head, None, tail, threshold=0.5) == 1
    assert quark.pair_factors(head, None, tail, threshold=None) == pytest.approx(3**0.5)


def test_a_dead_channel_keeps_its_weights() -> None:
    assert quark.pair_factors(_row(0), None, _row(2), threshold=None) == 1
    assert quark.pair_factors(_row(2), None, _row(0), threshold=None) == 1


def test_a_large_bias_counts_as_a_weight() -> None:
    head, tail = _row(1), _row(1)

    assert quark.pair_factors(head, np.float32([8]), tail, threshold=None) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("weights", "bias", "shrink"),
    [
        ((1.0, 1.0), 1.0, 2),
        ((1.0, 1e-3, 1e-3), 0.5, 5),
        ((1.0, 1.0), 12.0, 5),
        ((1.0, 1.0), 20.0, 10),
        ((1.0, 1.0), 40.0, 20),
        ((0.0, 0.0), 40.0, 2),
        ((1.0, 0.0), 1.0, 2),
    ],
)
def test_bias_is_shrunk_by_how_far_it_exceeds_the_weights(
    weights: tuple[float, ...], bias: float, shrink: float
) -> None:
    assert quark.bias_shrink(_row(*weights), np.float32([bias])) == shrink


def test_a_triple_ends_with_three_equal_peaks() -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(size=(1, 5, 3, 9)).astype(np.float32)
    middle = rng.normal(size=(5, 1, 1, 9)).astype(np.float32)
    last = rng.normal(size=(1, 4, 5, 1)).astype(np.float32)

    before, after = quark.triple_factors(first, middle, last)
    scale_outputs(first, 1 / before)
    scale_inputs(middle, before)
    scale_outputs(middle, 1 / after)
    scale_inputs(last, after)

    np.testing.assert_allclose(output_peaks(first), output_peaks(middle), rtol=1e-5)
    np.testing.assert_allclose(output_peaks(middle), input_peaks(last), rtol=1e-5)


def test_a_triple_with_a_dead_channel_is_left_alone() -> None:
    before, after = quark.triple_factors(_row(0), _row(1), _row(1))

    assert (before, after) == (1, 1)


def test_stem_channels_are_raised_to_the_largest_by_sixteen_at_most() -> None:
    kernel = np.float32([8, -4, 0.1, 1e-7, 0]).reshape(1, 5, 1, 1)

    np.testing.assert_array_equal(quark.stem_factors(kernel), [1, 2, 16, 1, 1])
