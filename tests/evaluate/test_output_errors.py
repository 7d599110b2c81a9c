"""A figure that fits each output, and levels that mean the same for all."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
from helpers.verdicts import noisy_maps, rows_of, sparse_maps, verdict_of

from lowbit.evaluate.output_errors import OutputErrors
from lowbit.evaluate.output_kinds import MeasuredOutput
from lowbit.evaluate.outputs import OutputSlice

# One process imports SciPy's and scikit-image's modules: two seconds.
pytestmark = pytest.mark.xdist_group("scipy")


def _is_certain(
    kind: str, want: list[np.ndarray], got: list[np.ndarray], *, total: int = 1 << 30, **fields
) -> bool:
    errors = OutputErrors([MeasuredOutput(OutputSlice("y"), kind, "y", **fields)], {})
    for a, b in zip(want, got, strict=True):
        errors.add({"y": a}, {"y": b})
    return errors.is_certain(total)


def test_classes_are_measured_by_divergence_and_agreement() -> None:
    want, noise = rows_of(6, 2, 10), rows_of(6, 2, 10, seed=1)
    got = [a + b for a, b in zip(want, noise, strict=True)]

    (row,) = verdict_of("classes", want, got, logits=True).outputs

    p, q = (scipy.special.softmax(np.concatenate(x), axis=-1) for x in (want, got))
    assert row.value == pytest.approx(float(np.mean(scipy.stats.entropy(p, q, axis=-1))), rel=1e-6)
    assert row.agreement == pytest.approx(np.mean(p.argmax(-1) == q.argmax(-1)))
    by_sample = [
        scipy.stats.entropy(*(scipy.special.softmax(x[i], -1) for x in (want, got)), axis=-1).mean()
        for i in range(6)
    ]
    assert row.standard_error == pytest.approx(scipy.stats.sem(by_sample), rel=1e-6)


def test_what_shifts_all_logits_alike_is_no_error() -> None:
    want = rows_of(3, 1, 10)

    verdict = verdict_of("classes", want, [a + 5 for a in want], logits=True)

    assert verdict.level == "good"
    assert verdict.worst.value == pytest.approx(0, abs=1e-6)


def test_few_labels_are_measured_by_the_divergence_of_each() -> None:
    want, got = np.float32([[2.0, -1.0]]), np.float32([[1.0, 0.5]])

    (row,) = verdict_of("labels", [want], [got], logits=True).outputs

    p, q = scipy.special.expit(want[0]), scipy.special.expit(got[0])
    expected = np.sum(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    assert row.value == pytest.approx(float(expected), rel=1e-6)


def test_embeddings_are_measured_by_their_angle_and_maps_by_their_noise() -> None:
    want, noise = rows_of(4, 1, 64), rows_of(4, 1, 64, seed=1)
    got = [a + 0.1 * b for a, b in zip(want, noise, strict=True)]

    (angle,) = verdict_of("embedding", want, got).outputs
    (ratio,) = verdict_of("values", want, got).outputs

    pairs = zip(want, got, strict=True)
    cosines = [(a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs]
    assert angle.value == pytest.approx(float(np.mean(cosines)), rel=1e-5)
    power = sum(np.square(a).sum() for a in want) / sum(0.01 * np.square(b).sum() for b in noise)
    assert ratio.value == pytest.approx(10 * math.log10(power), abs=0.01)


def test_the_worst_output_decides_and_all_are_shown() -> None:
    rows = [MeasuredOutput(OutputSlice(name), "values", name) for name in ("a", "b")]
    errors = OutputErrors(rows, {})
    x, noise = rows_of(1, 100)[0], rows_of(1, 100, seed=1)[0]
    errors.add({"a": x, "b": x}, {"a": x, "b": x + noise})

    verdict = errors.verdict(held_out=False)

    assert [row.level for row in verdict.outputs] == ["good", "ruined"]
    assert (verdict.level, verdict.worst.output, verdict.is_usable) == ("ruined", "b", False)
    assert verdict.describe().endswith(", on 1 calibration sample")


def test_outputs_that_cannot_be_compared_give_no_verdict() -> None:
    assert (
        verdict_of("values", [np.zeros((0, 4), np.float32)], [np.zeros((0, 4), np.float32)]) is None
    )


_LEVELS = [(60.0, "good"), (27.0, "good"), (20.0, "usable"), (11.0, "poor"), (4.0, "ruined")]


@pytest.mark.parametrize(("noise_db", "level"), _LEVELS)
def test_a_map_with_noise_of_known_strength_gets_the_level_of_the_table(
    noise_db: float, level: str
) -> None:
    want, noise = rows_of(8, 1, 4, 16, 16), rows_of(8, 1, 4, 16, 16, seed=1)
    got = [a + b * np.float32(10 ** (-noise_db / 20)) for a, b in zip(want, noise, strict=True)]

    verdict = verdict_of("values", want, got)

    assert verdict.level == level
    assert verdict.worst.value == pytest.approx(noise_db, abs=0.2)


def test_numbers_of_the_right_direction_and_the_wrong_size_are_not_good() -> None:
    want = rows_of(8, 2, 4)

    # As a scale would be that is off by a factor of two.
    verdict = verdict_of("values", want, [2 * a for a in want])

    assert verdict.level == "ruined"


@pytest.mark.parametrize(("others", "expected"), [(1, 7), (4, None)])
def test_one_class_for_nearly_all_samples_is_noticed(others: int, expected: int | None) -> None:
    errors = OutputErrors([MeasuredOutput(OutputSlice("y"), "classes", "y", logits=True)], {})
    for sample in range(20):
        logits = np.zeros((1, 12), np.float32)
        logits[0, sample % 5 if sample < others else 7] = 3
        errors.add({"y": logits}, {"y": logits})

    verdict = errors.verdict(held_out=True)

    assert verdict is not None
    assert verdict.outputs[0].one_class == expected


def test_the_error_of_a_ratio_is_that_of_all_samples_together() -> None:
    want, got = sparse_maps(12, 0.005, 0.08)

    row = verdict_of("scores", want, got).worst

    signal = np.array([np.square(a, dtype=np.float64).sum() for a in want])
    noise = np.array(
        [np.square(a - b, dtype=np.float64).sum() for a, b in zip(want, got, strict=True)]
    )
    rng = np.random.default_rng(0)
    drawn = (rng.integers(12, size=12) for _ in range(4000))
    bootstrap = np.std([10 * np.log10(signal[i].sum() / noise[i].sum()) for i in drawn])
    assert row.value == pytest.approx(10 * np.log10(signal.sum() / noise.sum()), abs=1e-3)
    # Nearly all noise is in one of twelve samples; that of their decibels would be 1.6.
    assert row.standard_error > 0.7 * bootstrap > 3
    assert row.margin_db - row.error_db == pytest.approx(row.value - row.standard_error - 15)


def _decided(same: int, count: int, *, near: float = 0.02) -> tuple[list[np.ndarray], ...]:
    """Logits of two classes that nearly tie: little noise, of which some decisions turn."""
    want = [np.float32([[near, -near]])] * count
    got = [np.float32([[near, -near] if i < same else [-near, near]]) for i in range(count)]
    return want, got


@pytest.mark.parametrize(
    ("same", "count", "level"),
    [(32, 32, "good"), (29, 32, "good"), (27, 32, "usable"), (24, 32, "poor"), (160, 320, "poor"),
     (100, 320, "ruined"), (13, 16, "usable"), (0, 8, "good")],  # few decide nothing
)  # fmt: skip
def test_one_decision_a_sample_is_judged_by_how_often_it_is_the_same(
    same: int, count: int, level: str
) -> None:
    verdict = verdict_of("classes", *_decided(same, count), logits=True)

    assert verdict.worst.value < 0.01  # which alone would be good
    assert verdict.level == level
    assert verdict.worst.agreement == pytest.approx(same / count)
    assert ("only" in verdict.describe()) == (level != "good")
    assert verdict.is_usable == (verdict.margin_db >= 0) or verdict.worst.sqnr_db < 10


@pytest.mark.parametrize("kind", ["values", "embedding", "classes"])
def test_a_level_is_certain_where_the_limits_are_many_standard_errors_away(kind: str) -> None:
    want, noise = rows_of(8, 1, 64, 50), rows_of(8, 1, 64, 50, seed=1)
    for factor, expected in ((0.01, True), (10.0, True)):
        got = [a + np.float32(factor) * b for a, b in zip(want, noise, strict=True)]
        assert _is_certain(kind, want, got) is expected
    # One sample of eight is ruined: the others are not sure to be good.
    got = [a + np.float32(0.01) * b for a, b in zip(want, noise, strict=True)]
    assert not _is_certain(kind, want, [*got[:7], noise[7]])


@pytest.mark.parametrize(("ratio_db", "certain"), [(25.0, False), (25.3, False), (28.0, True)])
def test_a_figure_near_a_limit_is_not_certain(ratio_db: float, certain: bool) -> None:
    # Samples whose noise differs by a decibel: the standard error of eight is 0.35 dB, of which 4.8 count.
    ratios = ratio_db + np.tile([-1.0, 1.0], 4)

    assert _is_certain("values", *noisy_maps(*ratios)) is certain


@pytest.mark.parametrize(("total", "certain"), [(1000, False), (16, False), (9, True), (8, True)])
def test_a_figure_near_a_limit_is_certain_where_few_samples_are_left(
    total: int, certain: bool
) -> None:
    # 4.8 standard errors of 0.35 dB, times sqrt(1 - 8 / total): 1.7, 1.2, 0.6 and none.
    ratios = 26.0 + np.tile([-1.0, 1.0], 4)

    assert _is_certain("values", *noisy_maps(*ratios), total=total) is certain


def test_few_decisions_are_not_certain() -> None:
    for same, count, certain in ((16, 16, False), (0, 16, True), (64, 64, False), (200, 200, True)):
        assert _is_certain("classes", *_decided(same, count), logits=True) is certain


def test_scores_are_not_certain() -> None:
    """One more sample may hold most of the noise, as the last one here does."""
    want, got = sparse_maps(24, 0.002, 0.002)
    rare = want[-1] + np.float32(0.5) * rows_of(1, *want[-1].shape)[0]

    seen = verdict_of("scores", want, got)
    every = verdict_of("scores", want, [*got[:-1], rare])

    assert (seen.level, every.level) == ("good", "poor")  # no more, as so few are unsure
    assert not _is_certain("scores", want[:8], got[:8])
    assert _is_certain("values", want[:8], got[:8])


def test_nothing_measured_is_not_certain() -> None:
    assert not _is_certain("values", [], [])
    assert not _is_certain("values", rows_of(1, 9), rows_of(1, 9))


def test_sequences_are_judged_by_their_divergence_alone() -> None:
    want, got = _decided(24, 32)
    sequence = [np.concatenate(x)[None] for x in (want, got)]

    verdict = verdict_of("classes", [sequence[0]] * 4, [sequence[1]] * 4, logits=True)

    assert verdict.worst.agreement == pytest.approx(0.75)
    assert verdict.level == "good"


def test_channels_count_if_any_sample_shows_something_in_them() -> None:
    boxes, scores = OutputSlice("y", 1, 0, 4), OutputSlice("y", 1, 4, 6)
    quiet = np.concatenate([np.full((1, 4, 9), 100.0), np.full((1, 2, 9), 0.001)], 1)
    shown = quiet.copy()
    shown[0, 4, 3] = 0.9

    def outputs(*samples: np.ndarray) -> list[str]:
        rows = [MeasuredOutput(part, "values", "y") for part in (boxes, scores)]
        errors = OutputErrors(rows, {})
        for sample in samples:
            errors.add({"y": sample}, {"y": sample * 1.01})
        assert set(errors.intervals("sqnr")) == set(rows[: len(verdict_of(errors).outputs)])
        return [row.output for row in verdict_of(errors).outputs]

    def verdict_of(errors: OutputErrors):
        return errors.verdict(held_out=True)

    assert outputs(quiet, quiet) == [boxes.name]
    assert outputs(quiet, quiet, quiet, quiet, quiet, shown) == [boxes.name, scores.name]


def test_a_sample_without_these_channels_says_nothing_of_them() -> None:
    part = MeasuredOutput(OutputSlice("y", 1, 4, 8), "values", "y")
    errors = OutputErrors([part], {})
    long, short = rows_of(1, 1, 8, 3)[0], rows_of(1, 1, 4, 3)[0]

    errors.add({"y": long}, {"y": long})
    errors.add({"y": short}, {"y": short + 1})

    assert errors.verdict(held_out=True).level == "good"


def test_logits_that_are_not_finite_any_more_ruin_a_model() -> None:
    want = rows_of(6, 1, 10)
    got = [row.copy() for row in want]
    for row in got:
        row[0, 3] = -np.inf

    verdict = verdict_of("classes", want, got, logits=True)

    assert verdict.level == "ruined"
