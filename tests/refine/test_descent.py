"""Descent over integers against one column at a time, and against all roundings there are."""

import itertools

import array_api_strict as strict
import numpy as np
import pytest
from helpers.column_moments import moments_of

from lowbit.refine.descent import Moments, descend


def _problem(groups, outputs, depth, count=200, seed=0):
    random = np.random.default_rng(seed)
    mix = random.standard_normal((groups, depth, depth)).astype(np.float32)
    patches = mix @ random.standard_normal((groups, depth, count)).astype(np.float32) + 1.5
    weight = random.standard_normal((groups, outputs, depth)).astype(np.float32)
    targets = weight @ (patches + 0.1 * random.standard_normal(patches.shape).astype(np.float32))
    return weight, patches, targets


def _error(moments, codes, scale):
    real = (codes * scale).astype(np.float64)
    return float(np.sum(real @ moments.inputs * real) - 2 * np.sum(real * moments.outputs))


def _neighbours(weight, scale):
    return np.floor(weight / scale), np.ceil(weight / scale)


def _naive(moments, start, scale, bounds, sweeps):
    """One row, one column at a time, everything recomputed."""
    codes = start.astype(np.float64).copy()
    for _ in range(sweeps):
        for g, j in itertools.product(range(codes.shape[0]), range(codes.shape[2])):
            for o in range(codes.shape[1]):
                h, wanted = moments.inputs[g].astype(np.float64), moments.outputs[g, o, j]
                rest = codes[g, o] * scale[g, o]
                gradient = wanted - rest @ h[:, j]
                best = np.round(codes[g, o, j] + gradient / (h[j, j] * scale[g, o, j]))
                codes[g, o, j] = np.clip(best, bounds[0][g, o, j], bounds[1][g, o, j])
    return codes


@pytest.mark.parametrize(("groups", "outputs", "depth"), [(1, 4, 9), (3, 2, 5), (1, 3, 150)])
def test_blocks_give_what_one_column_at_a_time_gives(groups, outputs, depth):
    weight, patches, targets = _problem(groups, outputs, depth, count=4 * depth)
    scale = np.full_like(weight, 0.25) * np.linspace(1, 2, outputs, dtype=np.float32)[:, None]
    moments = moments_of(patches, targets, centred=True).held_to(weight, 0.05)
    bounds = _neighbours(weight, scale)
    start = np.round(weight / scale)
    found = descend(moments, start, scale, bounds, 2)
    slow = _naive(moments, start, scale, bounds, 2)
    # Ties and the last bit of single precision may decide a few otherwise.
    assert np.mean(found != slow) < 0.01
    assert _error(moments, found, scale) == pytest.approx(_error(moments, slow, scale), rel=1e-3)


def test_it_finds_nearly_the_best_of_all_roundings():
    gaps = []
    for seed in range(20):
        weight, patches, targets = _problem(1, 1, 6, seed=seed)
        scale = np.full_like(weight, 0.5)
        moments = moments_of(patches, targets, centred=True)
        low, high = _neighbours(weight, scale)
        start = np.round(weight / scale)
        found = _error(moments, descend(moments, start, scale, (low, high), 8), scale)
        every = [
            _error(moments, np.where(np.array(ups)[None, None], high, low), scale)
            for ups in itertools.product((False, True), repeat=6)
        ]
        assert min(every) - 1e-4 <= found <= _error(moments, start, scale) + 1e-4
        gaps.append((found - min(every)) / (_error(moments, start, scale) - min(every) + 1e-9))
    assert np.median(gaps) < 0.2


def test_more_sweeps_never_raise_the_error():
    weight, patches, targets = _problem(1, 8, 80, count=300)
    scale = np.float32(0.3)
    moments = moments_of(patches, targets, centred=True).held_to(weight, 0.05)
    start = np.round(weight / scale)
    bounds = _neighbours(weight, scale)
    errors = [_error(moments, start, scale)]
    errors += [
        _error(moments, descend(moments, start, scale, bounds, sweeps), scale)
        for sweeps in (1, 2, 4, 8)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0]


def test_an_input_that_never_varies_keeps_its_weights():
    weight, patches, targets = _problem(1, 3, 5)
    patches[:, 2] = 0.0
    scale = np.float32(0.5)
    moments = moments_of(patches, targets, centred=True).held_to(weight, 0.05)
    start = np.round(weight / scale)
    found = descend(moments, start, scale, _neighbours(weight, scale), 4)
    np.testing.assert_array_equal(found[:, :, 2], start[:, :, 2])


def test_a_strong_ridge_is_nearest_rounding():
    weight, patches, targets = _problem(1, 4, 7)
    scale = np.float32(0.5)
    moments = moments_of(patches, targets, centred=True).held_to(weight, 1e6)
    start = np.round(weight / scale)
    found = descend(moments, start, scale, _neighbours(weight, scale), 4)
    np.testing.assert_array_equal(found, start)


def test_moments_are_those_of_the_definition():
    _, patches, targets = _problem(2, 3, 4)
    found = moments_of(patches, targets, centred=True)
    for g in range(2):
        joint = np.cov(np.concatenate([patches[g], targets[g]]), bias=True)
        np.testing.assert_allclose(found.inputs[g], joint[:4, :4], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(found.outputs[g], joint[4:, :4], rtol=1e-3, atol=1e-3)


def test_each_output_ends_where_it_would_by_itself():
    """Those in which nothing moves are left out of the next sweeps, at different times."""
    weight, patches, targets = _problem(1, 16, 40, count=500)
    scale = np.float32(0.3)
    moments = moments_of(patches, targets, centred=True).held_to(weight, 0.2)
    start, bounds = np.round(weight / scale), _neighbours(weight, scale)
    found = [descend(moments, start, scale, bounds, sweeps) for sweeps in range(20)]
    np.testing.assert_array_equal(found[-1], found[-2])

    ends = []
    for output in range(16):
        one = Moments(moments.inputs, moments.outputs[:, [output]])
        limits = tuple(bound[:, [output]] for bound in bounds)
        alone = descend(one, start[:, [output]], scale, limits, 20)
        np.testing.assert_array_equal(found[-1][:, [output]], alone)
        ends.append(next(i for i in range(20) if np.array_equal(found[i][:, [output]], alone)))
    assert len(set(ends)) > 1


def test_weights_that_begin_elsewhere_end_between_their_neighbours():
    weight, patches, targets = _problem(1, 4, 40)
    scale = np.full_like(weight, 0.3) * np.linspace(0.5, 1.5, 40, dtype=np.float32)
    moments = moments_of(patches, targets, centred=True).held_to(weight, 0.2)
    low, high = _neighbours(weight, scale)
    found = descend(moments, np.round(weight / scale) + 3, scale, (low, high), 8)
    assert np.all((found == low) | (found == high))
    near = descend(moments, np.round(weight / scale), scale, (low, high), 8)
    errors = [_error(moments, codes, scale) for codes in (found, near)]
    assert errors[0] == pytest.approx(errors[1], rel=0.02)


@pytest.mark.parametrize(("groups", "outputs", "depth"), [(2, 3, 5), (1, 5, 70)])
def test_arrays_that_allow_nothing_but_the_array_api_give_the_same(groups, outputs, depth):
    weight, patches, targets = _problem(groups, outputs, depth, count=8 * depth, seed=3)
    scale = np.full_like(weight, 0.3)

    def solved(put):
        w, u, y, s = (put(a) for a in (weight, patches, targets, scale))
        bounds = (put(np.floor(weight / scale)), put(np.ceil(weight / scale)))
        moments = moments_of(u, y, centred=True).held_to(w, 0.1)
        return np.asarray(descend(moments, put(np.round(weight / scale)), s, bounds, 3))

    np.testing.assert_array_equal(solved(strict.asarray), solved(np.asarray))
