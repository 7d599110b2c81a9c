"""Accuracy on labelled samples: the figures and their intervals."""

from __future__ import annotations

import math
import sys

import numpy as np
import onnxruntime as ort
import pytest
import scipy
import skimage
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized

import lowbit
from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError, DataError
from lowbit.evaluate import accuracy
from lowbit.evaluate.accuracy import (
    Gap,
    LabelledSamples,
    MetricScorer,
    TopScorer,
    find_metric,
    gap_of_hits,
    gap_of_scores,
    gap_of_sets,
)
from lowbit.graph import io

# One process imports SciPy's and scikit-image's modules: two seconds.
pytestmark = pytest.mark.xdist_group("scipy")


def test_paired_scores_are_scipys_paired_interval() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=60)
    b = a - 0.1 + 0.05 * rng.normal(size=60)

    gap = gap_of_scores(a.tolist(), b.tolist())

    want = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    assert gap.value == pytest.approx(np.mean(a - b))
    assert (gap.low, gap.high) == (
        pytest.approx(want.low, rel=1e-3),
        pytest.approx(want.high, rel=1e-3),
    )


def test_the_interval_of_hits_covers_the_true_gap_95_times_in_100() -> None:
    rng = np.random.default_rng(1)
    true, count, trials = 0.02, 400, 2000
    covered = 0
    for _ in range(trials):
        kind = rng.choice(4, count, p=[0.65, 0.05, 0.03, 0.27])  # both, lost, won, neither
        gap = gap_of_hits((kind <= 1).tolist(), ((kind == 0) | (kind == 2)).tolist())
        covered += gap.low <= true <= gap.high

    assert 0.93 < covered / trials < 0.98


def test_few_samples_without_a_change_do_not_claim_certainty() -> None:
    gap = gap_of_hits([True] * 10, [True] * 10)

    assert gap.value == 0
    assert gap.low < -0.1
    assert gap.high > 0.1


def test_samples_needed_narrow_the_interval_to_the_tolerance() -> None:
    rng = np.random.default_rng(2)
    kind = rng.choice(3, 500, p=[0.9, 0.06, 0.04])
    needed = gap_of_hits((kind != 2).tolist(), (kind != 1).tolist()).samples_needed(0.01)

    kind = rng.choice(3, needed, p=[0.9, 0.06, 0.04])
    gap = gap_of_hits((kind != 2).tolist(), (kind != 1).tolist())
    assert (gap.high - gap.low) / 2 == pytest.approx(0.01, rel=0.15)


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(1, 1, 200), rng.normal(0.5, 1, 200)

    gap = gap_of_sets(a.tolist(), b.tolist(), lambda items: float(np.mean(items)))

    error = np.std(a - b, ddof=1) / math.sqrt(200)
    assert gap.value == pytest.approx(np.mean(a) - np.mean(b))
    assert (gap.high - gap.low) / 2 == pytest.approx(2.09 * error, rel=0.35)


def test_the_interval_of_hits_is_that_of_bonett_and_price() -> None:
    # 3 lost and 1 won of 10: p = 4/12, q = 2/12, variance p + q - (p - q)^2.
    floats = [True] * 3 + [False] + [True] * 6
    quantized = [False] * 3 + [True] + [True] * 6

    gap = gap_of_hits(floats, quantized)

    half = 1.959964 * math.sqrt((1 / 2 - 1 / 36) / 12)
    assert gap.value == pytest.approx(0.2)
    assert (gap.low, gap.high) == (
        pytest.approx(1 / 6 - half, rel=1e-6),
        pytest.approx(1 / 6 + half, rel=1e-6),
    )


def test_of_one_sample_nothing_is_known() -> None:
    for gap in (gap_of_scores([1.0], [0.5]), gap_of_sets([1.0], [0.5], sum)):
        assert gap == Gap(0.5, -math.inf, math.inf, math.inf)


def test_at_least_two_samples_are_needed() -> None:
    assert Gap(0.0, 0.0, 0.0, 0.0).samples_needed(0.01) == 2
    # Half of an interval of 95 % is 1.96 standard errors: (1.96 * 3 / 0.5)^2.
    assert Gap(0.0, 0.0, 0.0, 9.0).samples_needed(0.5) == math.ceil((1.959964 * 6) ** 2)


# Figures


def test_top_1_is_argmax_even_among_equal_scores() -> None:
    rng = np.random.default_rng(0)
    scorer = TopScorer()
    hits = [0, 0]
    for _ in range(300):
        scores = rng.integers(0, 4, (1, 10)).astype(np.float32)
        label = int(rng.integers(10))
        scorer.add([{"y": scores}, {"y": scores}, None], label)
        best = np.argsort(-scores[0], kind="stable")
        hits[0] += best[0] == label
        hits[1] += label in best[:5]

    first, fifth = scorer.figures(1.0)

    assert first.float_score == pytest.approx(100 * hits[0] / 300)
    assert fifth.quantized_score == pytest.approx(100 * hits[1] / 300)
    assert (first.gap, first.fused_score) == (0, None)


@pytest.fixture(scope="module")
def case():
    feeds = small_feeds(12)
    return feeds, lowbit.quantize(small_cnn(), data=feeds).quantized


def test_labels_the_float_model_gives_are_all_right_in_float(case) -> None:
    feeds, quantized = case
    session = ort.InferenceSession(small_cnn().SerializeToString())
    labels = [int(session.run(None, feed)[0].argmax()) for feed in feeds]

    (top1,) = lowbit.compare(small_cnn(), quantized, feeds, labels=labels, budget="none").accuracy

    assert (top1.name, top1.float_score, top1.samples) == ("top1", 100, 12)
    assert top1.low <= top1.gap <= top1.high
    assert top1.fused_score is not None


def error_of(outputs, label):
    return skimage.metrics.mean_squared_error(outputs["logits"], np.full((1, 5), label, np.float32))


def spread(outputs, _):
    return float(outputs["logits"].max())


spread.summarize = np.median


def test_a_metric_of_ones_own(case) -> None:
    feeds, quantized = case

    report = lowbit.compare(
        small_cnn(), quantized, feeds, labels=[1] * 12, metric=error_of, budget="none"
    )

    (row,) = report.accuracy
    session = ort.InferenceSession(small_cnn().SerializeToString())
    want = np.mean([np.mean((session.run(None, feed)[0] - 1) ** 2) for feed in feeds])
    assert (row.name, row.unit) == ("error_of", "")
    assert row.float_score == pytest.approx(want, rel=1e-4)


def test_a_metric_of_a_whole_set(case) -> None:
    feeds, quantized = case

    report = lowbit.compare(
        small_cnn(), quantized, feeds, labels=[0] * 12, metric=spread, budget="none"
    )

    (row,) = report.accuracy
    assert row.low < row.gap < row.high


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"labels": [0] * 3}, DataError, "3 labels for 12 samples"),
        ({"labels": [9] * 12}, DataError, "no class of output 'logits'"),
        ({"metric": error_of}, ConfigError, "no labels"),
        ({"labels": [0] * 12, "metric": "no_such:thing"}, ConfigError, "cannot be imported"),
        ({"labels": [0] * 12, "metric": "json:thing"}, ConfigError, "has no function 'thing'"),
        ({"labels": [0] * 12, "metric": "json"}, ConfigError, "module:function"),
        ({"labels": [0] * 12, "metric": lambda *_: "x"}, ConfigError, "expected a number"),
    ],
)
def test_options_that_do_not_fit_are_named(case, options, error, message) -> None:
    feeds, quantized = case

    with pytest.raises(error, match=message):
        lowbit.compare(small_cnn(), quantized, feeds, budget="none", **options)


def test_top_5_is_told_where_there_are_more_than_five_classes() -> None:
    def names(classes: int) -> list[str]:
        scorer = TopScorer()
        scorer.add([{"y": np.eye(1, classes, dtype=np.float32)}] * 2 + [None], 0)
        return [row.name for row in scorer.figures(1.0)]

    assert names(5) == ["top1"]
    assert names(6) == ["top1", "top5"]


def test_a_batch_of_several_samples_has_no_top_1() -> None:
    scores = {"y": np.zeros((4, 10), np.float32)}

    with pytest.raises(DataError, match="output 'y' holds 4 samples at a time; top-1 needs"):
        TopScorer().add([scores, scores, None], 0)


def test_fused_scores_are_of_the_same_samples() -> None:
    good, bad = {"y": np.float32([[1, 0]])}, {"y": np.float32([[0, 1]])}
    scorer = TopScorer()

    scorer.add([good, good, bad], 0)
    scorer.add([good, bad, bad], 0)

    (row,) = scorer.figures(1.0)
    assert (row.float_score, row.quantized_score, row.fused_score) == (100, 50, 0)
    assert (row.gap, row.unit, row.samples) == (50, "%", 2)


def test_percent_are_percent_in_gap_tolerance_and_samples_needed() -> None:
    scorer = TopScorer()
    for index in range(40):
        right = {"y": np.float32([[1, 0]])}
        scorer.add([right, right if index else {"y": np.float32([[0, 1]])}, None], 0)

    (row,) = scorer.figures(2.0)

    gap = gap_of_hits([True] * 40, [False] + [True] * 39)
    assert (row.gap, row.low, row.high) == (100 * gap.value, 100 * gap.low, 100 * gap.high)
    assert row.samples_needed == gap.samples_needed(0.02)


def test_a_single_sample_needs_an_unknown_number_of_others() -> None:
    scorer = MetricScorer(spread)
    scorer.add([{"logits": np.ones(3)}, {"logits": np.zeros(3)}, None], 0)

    (row,) = scorer.figures(1.0)

    assert (row.gap, row.low, row.high, row.samples_needed) == (1, -math.inf, math.inf, 0)


def test_a_metric_beside_the_user_is_found(tmp_path, monkeypatch) -> None:
    (tmp_path / "my_metrics.py").write_text(
        "def first(outputs, label):\n    return label\nlimit = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part != str(tmp_path)])

    assert find_metric("my_metrics:first")({}, 7) == 7
    assert find_metric("my_metrics.py:first")({}, 8) == 8
    with pytest.raises(ConfigError, match="my_metrics:limit is a int, not a function"):
        find_metric("my_metrics:limit")


@pytest.mark.parametrize(("shift", "doubted"), [(0, False), (1, True)])
def test_labels_that_the_float_model_meets_by_chance_are_doubted(
    shift: int, *, doubted: bool
) -> None:
    scorer = TopScorer()
    for index in range(40):
        scores = {"y": np.eye(10, dtype=np.float32)[[index % 10]]}
        scorer.add([scores, scores, None], (index + shift) % 10)

    assert bool(scorer.doubts()) is doubted
    if doubted:
        (note,) = scorer.doubts()
        assert "right on 0 of 40 samples, and chance on 4.0" in note


@pytest.mark.parametrize(("hits", "doubted"), [(1, True), (20, False)])
def test_a_hit_or_two_in_many_classes_may_be_chance(hits: int, *, doubted: bool) -> None:
    scorer = TopScorer()
    for index in range(200):
        scores = {"y": np.eye(1000, dtype=np.float32)[[index if index < hits else 999]]}
        scorer.add([scores, scores, None], index)

    assert bool(scorer.doubts()) is doubted


def test_few_labels_and_two_classes_are_not_doubted() -> None:
    few, two = TopScorer(), TopScorer()
    for _ in range(15):
        few.add([{"y": np.eye(10, dtype=np.float32)[[0]]}, None, None], 1)
    for index in range(40):  # three in four are right
        two.add([{"y": np.eye(2, dtype=np.float32)[[0]]}, None, None], int(index % 4 == 0))

    assert few.doubts() == two.doubts() == ()


_FEEDS = small_feeds(12, 8)


def _best(model) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return np.array([session.run(None, feed)[0].argmax() for feed in _FEEDS])


def test_the_float_model_is_run_once_for_all(monkeypatch) -> None:
    model = io.load(small_cnn(8))
    labels = [int(k) for k in _best(small_cnn(8))]
    labels[:3] = [(k + 1) % 5 for k in labels[:3]]
    names = []
    real = accuracy.run_model
    monkeypatch.setattr(
        accuracy, "run_model", lambda run, feeds: names.append(run.name) or real(run, feeds)
    )

    samples = LabelledSamples.of(model, _FEEDS, labels, TopScorer())
    for preset in ("A8W8", "A16W8"):
        state = quantized(small_cnn(8), find_preset(preset), _FEEDS[:4])
        (top,) = samples.accuracy(state.emitted.model)
        hits = _best(io.to_proto(state.emitted.model)) == labels
        assert top.quantized_score == pytest.approx(100 * hits.mean())
        assert top.float_score == pytest.approx(75.0)
        assert top.samples == 12

    assert names == ["the float model", "the quantized model", "the quantized model"]
