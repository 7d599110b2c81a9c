"""Rows that stand for a whole tensor: enough of them, the same whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.calibrate.subsampling import row_step, subsampled


def test_small_tensors_and_those_without_rows_stay_whole() -> None:
    for shape in ((1, 8, 16, 16), (4, 10), (100_000,), (0, 8, 512, 512)):
        x = np.zeros(shape, np.float32)

        assert subsampled(x) is x


@pytest.mark.parametrize("shape", [(1, 64, 112, 112), (1, 2048, 384)])
def test_enough_values_of_large_ones_are_kept(shape: tuple[int, ...]) -> None:
    kept = subsampled(np.zeros(shape, np.float32))

    # Whole rows are taken, so it may be a row less than the 8192 that are enough.
    assert 0.9 * 8192 <= kept.size < np.prod(shape)
    # Of the axes only that of the rows is shorter.
    assert sum(a != b for a, b in zip(kept.shape, shape, strict=True)) == 1


def test_samples_of_a_batch_are_subsampled_as_each_alone() -> None:
    batch = np.random.default_rng(0).normal(size=(3, 16, 64, 64)).astype(np.float32)

    alone = np.concatenate([subsampled(sample[None]) for sample in batch])

    assert row_step(batch.shape) > 1
    np.testing.assert_array_equal(subsampled(batch), alone)


@pytest.mark.parametrize(
    ("shape", "channel_axis"), [((1, 512, 294), 1), ((1, 294, 512), -1), ((1, 64, 112, 112), 1)]
)
def test_no_channel_is_left_out(shape: tuple[int, ...], channel_axis: int) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)

    kept = subsampled(x, channel_axis)

    assert kept.shape[channel_axis] == shape[channel_axis]
    assert 0.9 * 8192 <= kept.size < x.size
    others = tuple(a for a in range(x.ndim) if a != channel_axis % x.ndim)
    np.testing.assert_allclose(kept.mean(axis=others), x.mean(axis=others), atol=1.5)
