"""Sums of columns against the columns themselves."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from helpers.column_moments import moments_of

from lowbit.refine.column_sums import ColumnSums
from lowbit.refine.moments import LayerMoments, columns_at_once
from lowbit.refine.samples import SampleInMemory

_RANDOM = np.random.default_rng(0)


def _columns(groups: int = 2, outputs: int = 3, depth: int = 5, count: int = 90):
    random = np.random.default_rng(0)
    patches = random.normal(2, 1, size=(groups, depth, count)).astype(np.float32)
    weight = random.normal(size=(groups, outputs, depth)).astype(np.float32)
    noise = random.normal(0, 0.1, size=(groups, outputs, count))
    return weight, patches, (weight @ patches + noise).astype(np.float32)


def _samples(patches: np.ndarray, targets: np.ndarray, parts: int = 3) -> list[SampleInMemory]:
    pairs = zip(np.split(patches, parts, axis=2), np.split(targets, parts, axis=2), strict=True)
    return [SampleInMemory(p, t, p.sum(axis=2), t.sum(axis=2), p.shape[2]) for p, t in pairs]


@pytest.mark.parametrize("centred", [True, False])
def test_moments_are_those_of_all_columns(centred: bool) -> None:
    _, patches, targets = _columns()
    sums = ColumnSums(2, 3, 5)
    for part in (slice(40), slice(40, 90)):
        sums.add(patches[:, :, part], targets[:, :, part])
    found, expected = sums.moments(centred=centred), moments_of(patches, targets, centred=centred)
    np.testing.assert_allclose(found.inputs, expected.inputs, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.outputs, expected.outputs, rtol=1e-3, atol=1e-4)


def test_columns_of_importance_are_centred_about_the_means_of_all() -> None:
    _, patches, targets = _columns()
    importance = _RANDOM.uniform(0.5, 2, size=90).astype(np.float32)
    sums = ColumnSums(2, 3, 5, relative=True)
    sums.add(patches, targets, importance)
    x, y = ((a - a.mean(axis=2, keepdims=True)) * importance for a in (patches, targets))
    expected = moments_of(x, y, centred=False)
    found = sums.moments(centred=True)
    np.testing.assert_allclose(found.inputs, expected.inputs, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.outputs, expected.outputs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("relative", [True, False])
def test_the_error_is_that_of_the_columns(relative: bool) -> None:
    weight, patches, targets = _columns()
    offset = _RANDOM.normal(size=(2, 3))
    importance = _RANDOM.uniform(0.5, 2, size=90).astype(np.float32) if relative else None
    sums = ColumnSums(2, 3, 5, relative=relative)
    sums.add(patches, targets, importance)
    rest = (weight @ patches + offset[:, :, None] - targets) * (
        1.0 if importance is None else importance
    )
    found = sums.error(weight, offset)
    assert found == pytest.approx(float(np.square(rest).mean()), rel=1e-3)


@pytest.mark.parametrize("held_out", [(), (1,)])
def test_small_errors_beside_large_outputs_are_told_apart(held_out: tuple[int, ...]) -> None:
    """Outputs of about a thousand, weights that differ in the sixth figure."""
    weight, patches, _ = _columns(groups=1)
    weight, bias = 1000 * weight, np.float32([5.0, -3.0, 0.0])
    targets = np.asarray(weight @ patches + bias.reshape(1, -1, 1), np.float32)
    seen = LayerMoments(weight, bias, held_out=held_out)
    samples = _samples(patches, targets)
    seen.add(list(enumerate(samples)))
    seen.finish()
    decide = samples if not held_out else [samples[i] for i in held_out]
    columns = np.concatenate([s.patches for s in decide], axis=2).astype(np.float64)
    for step in (1e-2, 2e-2):
        change = np.full_like(weight, step)
        expected = np.square(change.astype(np.float64) @ columns + 0.5).mean()
        assert seen.error(weight + change, bias + np.float32(0.5)) == pytest.approx(
            expected, rel=0.02
        )


def test_a_bias_that_stays_is_taken_off_the_targets() -> None:
    weight, patches, targets = _columns(groups=1)
    fixed = np.arange(3, dtype=np.float32)
    seen = LayerMoments(weight, None, fixed_bias=fixed)
    seen.add(list(enumerate(_samples(patches, targets))))
    seen.finish()
    expected = moments_of(patches, targets - fixed.reshape(1, -1, 1), centred=False)
    np.testing.assert_allclose(seen.output_moments(), expected.outputs, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(seen.means[1], targets.mean(axis=2) - fixed, atol=1e-4)
    rest = weight @ patches + fixed.reshape(1, -1, 1) - targets
    assert seen.error(weight, None) == pytest.approx(float(np.square(rest).mean()), rel=1e-3)


def test_relative_errors_count_a_position_by_its_own_size() -> None:
    weight, patches, _ = _columns(groups=1)
    patches[:, :, 0] *= 1000
    seen, plain = (LayerMoments(weight, None, relative=r) for r in (True, False))
    for moments in (seen, plain):
        moments.add(list(enumerate(_samples(patches, weight @ patches))))
        moments.finish()
    off = weight * np.float32(1.01)
    assert plain.error(off, None) > 1000 * seen.error(off, None)


def test_positions_that_were_clipped_have_nothing_to_say() -> None:
    weight, patches, targets = _columns(groups=1)
    rows = slice(0, 90, 10)
    targets[:, :, rows] += 50  # what clipping took from the inputs there
    clipped, plain = (LayerMoments(weight, None, clipped=c) for c in (True, False))
    usual = np.delete(np.arange(90), np.arange(90)[rows])
    wanted = LayerMoments(weight, None)
    for moments, some in ((clipped, np.arange(90)), (plain, np.arange(90)), (wanted, usual)):
        sample = _samples(patches[:, :, some], targets[:, :, some], parts=1)
        moments.add(list(enumerate(sample)))
        moments.finish()

    np.testing.assert_allclose(clipped.input_moments(), wanted.input_moments(), rtol=1e-5)
    np.testing.assert_allclose(clipped.output_moments(), wanted.output_moments(), rtol=1e-5)
    assert clipped.error(weight, None) == pytest.approx(wanted.error(weight, None))
    assert plain.error(weight, None) > 1000 * clipped.error(weight, None)


@pytest.mark.parametrize("held_out", [(), (1,)])
def test_means_are_those_of_all_columns(held_out: tuple[int, ...]) -> None:
    weight, patches, targets = _columns(groups=2)
    bias = np.arange(6, dtype=np.float32)
    seen = LayerMoments(weight, bias, held_out=held_out)
    seen.add(list(enumerate(_samples(patches, targets))))
    seen.finish()
    np.testing.assert_allclose(seen.means[0], patches.mean(axis=2), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(seen.means[1], targets.mean(axis=2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("held_out", [(), (1,)])
def test_sums_are_the_same_whichever_samples_come_together(held_out: tuple[int, ...]) -> None:
    weight, patches, targets = _columns(count=1800)
    samples = list(enumerate(_samples(patches, targets)))
    together, alone = (LayerMoments(weight, None, held_out=held_out) for _ in range(2))
    together.add(samples)
    for sample in samples:
        alone.add([sample])
    for seen in (together, alone):
        seen.finish()

    for found in zip(together.means, alone.means, strict=True):
        np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        together.input_moments(), alone.input_moments(), rtol=1e-4, atol=1e-5
    )
    assert together.error(1.1 * weight, None) == pytest.approx(alone.error(1.1 * weight, None))


@pytest.mark.parametrize("restored", [True, False])
def test_what_inputs_are_attenuated_by_is_restored_where_asked_for(restored: bool) -> None:
    weight, patches, targets = _columns(count=900)
    bias = np.zeros((2, 3), np.float32)
    moments = LayerMoments(weight, bias, restored=restored)
    moments.add(list(enumerate(_samples(0.9 * patches, targets))))
    moments.finish()

    factor = 1 / 0.9 if restored else 1.0
    np.testing.assert_allclose(moments.output_gain, factor, rtol=0.02)


@pytest.mark.parametrize(("depth", "left"), [(9, 0), (900, 100)])
def test_columns_of_a_shallow_layer_are_summed_up_as_they_come(depth: int, left: int) -> None:
    """What is left to the end is summed up while nothing else runs."""
    weight, patches, targets = _columns(groups=1, depth=depth, count=100)
    seen, ended = (LayerMoments(weight, None, held_out=(7,)) for _ in range(2))
    for moments in (seen, ended):
        moments.add([(0, sample) for sample in _samples(patches, targets, parts=1)])
    ended.finish()

    assert seen._solved_on.columns == 100 - left
    expected = moments_of(patches, targets, centred=False)
    np.testing.assert_allclose(ended.output_moments(), expected.outputs, rtol=1e-3, atol=1e-2)


def test_columns_wait_for_others_as_long_as_they_are_small() -> None:
    assert columns_at_once(1, 64, 128) == 512
    wide = columns_at_once(1152, 1, 25)
    assert wide == 70
    assert wide * 1152 * 26 * 4 < 9e6, "bytes"
    # Products of so many inputs take longer to add up than columns take memory.
    assert columns_at_once(1, 4096, 50000) == 64


def test_wide_samples_that_are_held_out_are_let_go_of() -> None:
    groups, depth, positions = 1152, 25, 40
    moments = LayerMoments(np.ones((groups, 1, depth), np.float32), None, held_out=range(1, 16, 2))
    waiting = []
    for index in range(16):
        patches = np.full((groups, depth, positions), index, np.float32)
        (sample,) = _samples(patches, patches.sum(axis=1, keepdims=True), parts=1)
        waiting.append(weakref.ref(patches))
        del patches
        moments.add([(index, sample)])
        del sample
        assert sum(ref() is not None for ref in waiting) <= 2, "one that solves, one held out"
