"""What samples show of a layer: columns, sums and means against the arrays they are taken of."""

from __future__ import annotations

import pathlib
import types

import numpy as np
import pytest
from helpers.column_moments import moments_of

from lowbit.graph.store import Store
from lowbit.ops.geometry import ConvLayer, LinearLayer, MatrixLayer
from lowbit.refine.samples import (
    SampleInMemory,
    SampleOnDisk,
    batched,
    enough_positions,
    enough_samples,
    held_out_numbers,
    held_out_split,
    means_of,
    sums_of,
    take_sample,
    take_target,
)


@pytest.mark.parametrize("depth", [9, 27, 64, 576, 2304, 4608])
@pytest.mark.parametrize("samples", [28, 64])
def test_equations_outnumber_the_unknowns(depth: int, samples: int) -> None:
    layer = types.SimpleNamespace(depth=depth)

    assert enough_positions(layer, 64, samples) * samples > 3 * depth


@pytest.mark.parametrize("depth", [9, 576, 2304])
def test_the_number_of_columns_does_not_grow_with_samples(depth: int) -> None:
    layer = types.SimpleNamespace(depth=depth)

    few, many = (enough_positions(layer, 64, n) * n for n in (64, 2048))

    assert many <= few + 2048  # rounded up for each sample


@pytest.mark.parametrize("depth", [9, 576, 2304])
def test_few_large_samples_give_as_many_columns_as_more_would(depth: int) -> None:
    layer = types.SimpleNamespace(depth=depth)

    few, more = (enough_positions(layer, 64, n, large=True) * n for n in (16, 32))

    assert few == more == enough_positions(layer, 64, 32) * 32


@pytest.mark.parametrize(
    ("unknowns", "samples", "enough", "enough_large"),
    [
        # A convolutional network whose last layers show few positions.
        ([0.1, 0.5, 20.0], 64, 32, 24),
        ([0.1, 0.5, 20.0], 20, 20, 20),
        ([1280.0, 512.0, 512.0], 500, 500, 500),  # rows of a matrix
        ([6.0, 6.0, 1280.0], 500, 48, 48),
    ],
)
def test_so_many_samples_are_used_as_the_layers_need(
    unknowns, samples, enough, enough_large
) -> None:
    assert enough_samples(unknowns, samples) == enough
    assert enough_samples(unknowns, samples, large=True) == enough_large


def test_of_fewer_large_samples_some_are_held_out() -> None:
    assert not held_out_numbers(24, 0.125)
    assert len(held_out_numbers(24, 0.125, large=True)) == 3
    assert not held_out_numbers(23, 0.125, large=True)


_CONV = ConvLayer(
    groups=2,
    outputs=3,
    inputs=2,
    taps=9,
    window=(3, 3),
    strides=(1, 1),
    dilations=(1, 1),
    pads=(1, 1, 1, 1),
)
_MATRIX = MatrixLayer(groups=1, outputs=4, inputs=5, transposed=False)
_RNG = np.random.default_rng(3)


def _arrays(layer: LinearLayer) -> tuple[np.ndarray, np.ndarray]:
    """Return an input and an output of the layer; the output need not follow from the input."""
    if layer is _CONV:
        return _RNG.normal(size=(2, 4, 6, 7)), _RNG.normal(size=(2, 6, 6, 7))
    return _RNG.normal(size=(3, 8, 5)), _RNG.normal(size=(3, 8, 4))


@pytest.mark.parametrize("layer", [_CONV, _MATRIX], ids=["conv", "matrix"])
@pytest.mark.parametrize("floats", [False, True])
def test_columns_are_those_of_the_same_positions(layer: LinearLayer, floats: bool) -> None:
    x, y = (a.astype(np.float32) for a in _arrays(layer))
    other = x * 2 if floats else None

    target = take_target(layer, y, other, 11, np.random.default_rng(0))
    sample = take_sample(layer, x, target)

    everywhere = np.arange(layer.count(y.shape))
    np.testing.assert_array_equal(sample.targets, layer.values(y, everywhere)[:, :, target.at])
    patches = layer.patches(x, everywhere, y.shape)
    np.testing.assert_array_equal(sample.patches, patches[:, :, target.at])
    assert len(set(target.at.tolist())) == 11
    assert target.shape == y.shape
    assert sample.count == layer.count(y.shape)
    # Means are over all positions, not over those drawn.
    np.testing.assert_allclose(sample.patch_sum, patches.sum(axis=2), rtol=1e-4, atol=1e-4)
    flat = layer.values(y, everywhere)
    np.testing.assert_allclose(sample.target_sum, flat.sum(axis=2), rtol=1e-4, atol=1e-4)
    if floats:
        np.testing.assert_array_equal(sample.float_patches, 2 * sample.patches)
    else:
        assert sample.float_patches is None


def test_a_layer_with_fewer_positions_shows_all_of_them() -> None:
    _, y = (a.astype(np.float32) for a in _arrays(_MATRIX))

    target = take_target(_MATRIX, y, None, 1000, np.random.default_rng(0))

    assert sorted(target.at.tolist()) == list(range(24))


def test_the_same_seed_draws_the_same_positions() -> None:
    _, y = (a.astype(np.float32) for a in _arrays(_CONV))

    def drawn(seed: int) -> list[int]:
        return take_target(_CONV, y, None, 9, np.random.default_rng(seed)).at.tolist()

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("floats", [False, True])
def test_samples_in_files_are_those_in_memory(tmp_path: pathlib.Path, floats: bool) -> None:
    x, y = (a.astype(np.float32) for a in _arrays(_CONV))
    target = take_target(_CONV, y, x + 1 if floats else None, 8, np.random.default_rng(0))
    memory = take_sample(_CONV, x, target)

    store = Store(tmp_path, room=0)
    disk = SampleOnDisk(store, "conv/1", 3, memory)

    for name in ("patches", "targets", "patch_sum", "target_sum"):
        np.testing.assert_array_equal(getattr(disk, name), getattr(memory, name))
    assert disk.count == memory.count
    assert len(store) == (5 if floats else 4)
    if floats:
        np.testing.assert_array_equal(disk.float_patches, memory.float_patches)
    else:
        assert disk.float_patches is None
    disk.drop()
    assert not len(store)


@pytest.mark.parametrize(
    ("count", "share", "held"), [(31, 0.125, 0), (32, 0.125, 4), (100, 0.5, 50), (100, 0.0, 0)]
)
def test_of_enough_samples_a_share_is_held_out_spread_evenly(
    count: int, share: float, held: int
) -> None:
    samples = list(range(count))

    train, out = held_out_split(samples, share)

    assert len(out) == held
    assert sorted([*train, *out]) == samples
    assert train == sorted(train)
    if held:
        gaps = np.diff([-1, *out, count])
        assert gaps.max() - gaps.min() <= 2


def _samples(count: int) -> list[SampleInMemory]:
    random = np.random.default_rng(4)
    weight = random.standard_normal((2, 3, 5)).astype(np.float32)
    samples = []
    for k in range(count):
        patches = (random.standard_normal((2, 5, 7 + k % 3)) + 0.5).astype(np.float32)
        targets = weight @ patches + np.float32(0.3)
        sums = patches.sum(axis=2), targets.sum(axis=2)
        samples.append(SampleInMemory(patches, targets, *sums, count=patches.shape[2]))
    return samples


def _together(samples: list[SampleInMemory]) -> list[np.ndarray]:
    return [
        np.concatenate([getattr(s, name) for s in samples], axis=2)
        for name in ("patches", "targets")
    ]


def test_means_are_over_all_positions_of_all_samples() -> None:
    samples = _samples(5)

    patch_mean, target_mean = means_of(samples)

    patches, targets = _together(samples)
    np.testing.assert_allclose(patch_mean, patches.mean(axis=2), rtol=1e-5)
    np.testing.assert_allclose(target_mean, targets.mean(axis=2), rtol=1e-5)


@pytest.mark.parametrize("bias", [None, 0.3])
@pytest.mark.parametrize("count", [1, 8, 11])
def test_sums_give_the_moments_of_all_samples_together(bias: float | None, count: int) -> None:
    samples = _samples(count)
    patches, targets = _together(samples)
    added = None if bias is None else np.full((2, 3, 1), bias, np.float32)

    found = sums_of(samples).moments(added)

    expected = moments_of(patches, targets - (bias or 0.0), centred=bias is None)
    np.testing.assert_allclose(found.inputs, expected.inputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.outputs, expected.outputs, rtol=1e-4, atol=1e-5)


def test_feeds_are_joined_along_their_first_axis() -> None:
    feeds = [{"x": np.full((1, 2), k), "y": np.full((2,), -k)} for k in range(5)]

    found = list(batched(lambda: iter(feeds), 2))

    assert [feed["x"].tolist() for feed in found] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]], [[4, 4]]]
    assert found[1]["y"].tolist() == [-2, -2, -3, -3]
    assert list(batched(lambda: iter([]), 2)) == []
