import numpy as np
import pytest
from skimage.metrics import mean_squared_error
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.errors import ConfigError, DataError
from lowbit.evaluate.accuracy import TopScorer


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
    session = __import__("onnxruntime").InferenceSession(small_cnn().SerializeToString())
    labels = [int(session.run(None, feed)[0].argmax()) for feed in feeds]

    (top1,) = lowbit.compare(small_cnn(), quantized, feeds, labels=labels, budget="none").accuracy

    assert (top1.name, top1.float_score, top1.samples) == ("top1", 100, 12)
    assert top1.low <= top1.gap <= top1.high
    assert top1.fused_score is not None


def error_of(outputs, label):
    return mean_squared_error(outputs["logits"], np.full((1, 5), label, np.float32))


def spread(outputs, _):
    return float(outputs["logits"].max())


spread.summarize = np.median


def test_a_metric_of_ones_own(case) -> None:
    feeds, quantized = case

    report = lowbit.compare(
        small_cnn(), quantized, feeds, labels=[1] * 12, metric=error_of, budget="none"
    )

    (row,) = report.accuracy
    session = __import__("onnxruntime").InferenceSession(small_cnn().SerializeToString())
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
def test_what_is_wrong_is_named(case, options, error, message) -> None:
    feeds, quantized = case

    with pytest.raises(error, match=message):
        lowbit.compare(small_cnn(), quantized, feeds, budget="none", **options)
