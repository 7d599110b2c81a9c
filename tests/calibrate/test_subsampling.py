"""Rows that stand for a whole tensor: enough of them, the same whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.calibrate.subsampling import map_steps, row_step, subsampled, thinned


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


@pytest.mark.parametrize(
    "shape", [(1, 96, 112, 112), (2, 960, 7, 7), (1, 1, 512, 512), (1, 8, 4, 9000)]
)
def test_enough_positions_of_a_map_stay_spread_over_rows_and_columns(
    shape: tuple[int, ...],
) -> None:
    rows, columns = np.indices(shape[2:], np.float32)

    kept = thinned(np.broadcast_to(rows * 10_000 + columns, shape))

    assert kept.shape[:2] == shape[:2]
    assert 0.9 * 8192 <= kept[0].size <= 2 * 8192
    seen = kept[0, 0]
    for at, length in ((seen[:, 0] // 10_000, shape[2]), (seen[0] % 10_000, shape[3])):
        assert len(at) >= min(3, length)
        assert len(set(np.diff(at))) <= 1
        # What is left out on both sides is no more than between two that are taken.
        assert at[0] + (length - 1 - at[-1]) <= 1.5 * np.diff(at)[0]


def test_a_map_is_thinned_alike_in_any_batch_and_a_small_one_not_at_all() -> None:
    batch = np.random.default_rng(2).normal(size=(3, 16, 64, 64)).astype(np.float32)
    small = batch[:, :1]

    assert map_steps(batch.shape) == (2, 4)
    np.testing.assert_array_equal(
        thinned(batch), np.concatenate([thinned(sample[None]) for sample in batch])
    )
    assert thinned(small) is small
    sequences = np.zeros((1, 2048, 384), np.float32)
    assert thinned(sequences) is sequences
