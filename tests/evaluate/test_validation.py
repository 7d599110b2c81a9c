"""The SQNR on held-out samples, and whether it rises by more than it varies."""

from __future__ import annotations

import math

import numpy as np
import onnx.parser
import pytest

from lowbit.evaluate import validation as module
from lowbit.evaluate.validation import Gain, Validation
from lowbit.graph import io, sharing


def _model(graph: str):
    header = '<ir_version: 8, opset_import: ["": 17]>'
    return io.load(onnx.parser.parse_model(f"{header}\n{graph}"))


_SAME = "g (float[1,2,5] x) => (float[1,2,5] y) { y = Identity(x) }"
_OFF = """g (float[1,2,5] x) => (float[1,2,5] y)
  <float[1,2,1] e = {0.5, 0.001}> { y = Add(x, e) }"""


def _feeds(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    scale = np.float32([100, 0.1]).reshape(1, 2, 1)  # boxes in pixels, and scores
    return [{"x": (rng.normal(size=(1, 2, 5)) * scale).astype(np.float32)} for _ in range(count)]


def test_channels_count_alike_whatever_their_scale() -> None:
    feeds = _feeds(3)

    found = Validation(_model(_SAME), feeds).sqnr(_model(_OFF))

    for feed, decibels in zip(feeds, found, strict=True):
        power = np.square(feed["x"][0].astype(np.float64)).sum(axis=1)
        noise = 5 * np.square([0.5, 0.001])
        assert decibels == pytest.approx(np.mean(10 * np.log10(power / noise)), abs=0.05)


def test_equal_outputs_have_the_highest_ratio_and_broken_ones_the_lowest() -> None:
    broken = "g (float[1,2,5] x) => (float[1,2,5] y) <float z = {0.0}> { y = Div(x, z) }"
    validation = Validation(_model(_SAME), _feeds(2))

    assert validation.sqnr(_model(_SAME)).tolist() == [120.0, 120.0]
    assert validation.sqnr(_model(broken)).tolist() == [-20.0, -20.0]


def test_models_side_by_side_are_measured_as_each_by_itself() -> None:
    validation = Validation(_model(_SAME), _feeds(3))

    same, off = validation.ratios([_model(_SAME), _model(_OFF)], {"y": "y"})

    np.testing.assert_array_equal(same.of_samples, validation.sqnr(_model(_SAME)))
    np.testing.assert_array_equal(off.of_samples, validation.sqnr(_model(_OFF)))


def test_outputs_that_are_no_floats_say_nothing() -> None:
    at = "g (float[1,2,5] x) => (int64[1,5] y) { y = ArgMax<axis=1, keepdims=0>(x) }"

    assert len(Validation(_model(at), _feeds(2)).sqnr(_model(at))) == 0


def test_a_channel_of_zeros_is_passed_over() -> None:
    feeds = [{"x": np.float32([[[3, 0, 0, 0, 4], [0] * 5]])}]

    found = Validation(_model(_SAME), feeds).sqnr(_model(_OFF))

    assert found.tolist() == pytest.approx([10 * math.log10(25 / (5 * 0.25))], abs=1e-4)


def test_as_many_samples_are_kept_as_their_outputs_leave_room_for(monkeypatch) -> None:
    assert len(Validation(_model(_SAME), _feeds(9))) == 9
    one = _feeds(1)[0]["x"].nbytes
    monkeypatch.setattr(module, "_ROOM_FOR_OUTPUTS", 3 * one)
    assert len(Validation(_model(_SAME), _feeds(9))) == 3
    # A single sample that is too large is kept: there must be something to measure on.
    monkeypatch.setattr(module, "_ROOM_FOR_OUTPUTS", 1)
    assert len(Validation(_model(_SAME), _feeds(9))) == 1


@pytest.mark.parametrize(
    ("rise", "error", "better"),
    [
        # Mean 1, standard deviation 1 (of two, divided by one): error sqrt(2)/sqrt(2).
        ([0.0, 2.0], math.sqrt(2) / math.sqrt(2), False),
        ([0.9, 1.1], 0.1, True),
        ([-1.0, -1.0], 0.0, False),
        ([0.0, 0.0], 0.0, False),
        ([3.0], 0.0, True),
        ([], 0.0, False),
    ],
)
def test_a_gain_must_exceed_its_standard_error(rise, error, better) -> None:
    before = np.full(len(rise), 20.0)

    gain = Gain.of(before, before + np.array(rise))

    assert gain.mean == pytest.approx(np.mean(rise) if rise else 0.0)
    assert gain.standard_error == pytest.approx(error)
    assert gain.is_better is better
    assert gain.samples == len(rise)


@pytest.mark.parametrize(
    # The numbers of standard errors beyond which one twentieth of Student's distribution lies.
    ("samples", "errors"),
    [(3, 2.920), (4, 2.353), (8, 1.895), (64, 1.669)],
)
def test_few_samples_have_to_show_more_of_a_fall(samples: int, errors: float) -> None:
    before, change = np.full(samples, 20.0), np.linspace(-1, 1, samples)
    error = float(change.std(ddof=1)) / math.sqrt(samples)

    for factor, expected in ((0.99, True), (1.01, False)):
        gain = Gain.of(before, before + change - factor * errors * error)
        assert gain.is_not_worse is expected


def test_one_sample_that_falls_is_worse() -> None:
    assert not Gain.of(np.array([20.0]), np.array([19.9])).is_not_worse
    assert Gain.of(np.array([20.0]), np.array([20.1])).is_not_worse


def test_a_gain_is_told_with_its_standard_error() -> None:
    text = Gain(0.657, 0.841, 8).describe()

    assert text == "+0.66 dB (standard error 0.84) on 8 samples"
    assert Gain(-0.1, 0.0, 1).describe().startswith("-0.10 dB")


def test_each_output_has_its_own_ratio() -> None:
    graph = """g (float[1,2,5] x) => (float[1,2,5] y, float[1,2,5] z)
      {{ y = Identity(x) s = Constant<value = float {{{factor}}}>() z = Mul(x, s) }}"""
    validation = Validation(_model(graph.format(factor="2.0")), _feeds(3))

    (found,) = validation.ratios([_model(graph.format(factor="2.2"))], {"y": "y", "z": "z"})

    assert {row.tensor: pytest.approx(ratio) for row, ratio in found.of_outputs.items()} == {
        "y": 120.0,
        "z": 20.0,
    }


def test_an_output_counts_once_whatever_its_channels() -> None:
    graph = """g (float[1,4,9,9] x) => (float[1,4,9,9] y, float[1,1,9,9] z)
      {{ a = Constant<value = float {{{first}}}>() y = Mul(x, a)
         b = Constant<value = float {{{second}}}>() axis = Constant<value = int64[1] {{1}}>()
         c = ReduceSum<keepdims = 1>(x, axis) z = Mul(c, b) }}"""
    feeds = [{"x": np.random.default_rng(0).normal(size=(1, 4, 9, 9)).astype(np.float32)}]
    validation = Validation(_model(graph.format(first="1.0", second="1.0")), feeds)

    (found,) = validation.sqnr(_model(graph.format(first="1.1", second="1.01")))

    assert found == pytest.approx((20 + 40) / 2, abs=0.01)


def test_large_samples_are_looked_at_after_a_quarter_and_a_half(monkeypatch) -> None:
    monkeypatch.setattr(sharing, "_LARGE", 1)
    looks = [Validation(_model(_SAME), _feeds(count)).looks for count in (1, 4, 5, 6, 11, 12, 16)]

    assert looks == [(), (), (4,), (4,), (4, 5), (4, 6), (4, 8)]


def test_small_samples_are_measured_all_at_once() -> None:
    assert Validation(_model(_SAME), _feeds(16)).looks == ()


@pytest.mark.parametrize("unless_worse", [False, True])
def test_what_was_decided_on_the_first_samples_holds_on_all(unless_worse: bool) -> None:
    rng = np.random.default_rng(0)
    wrong = decided = 0
    for mean in np.linspace(-3, 3, 3000):
        rise = rng.normal(mean, 1, 8)
        some, every = (Gain.of(np.zeros(n), rise[:n]) for n in (4, 8))
        kept = [g.is_not_worse if unless_worse else g.is_better for g in (some, every)]
        is_decided = some.is_decided(8, unless_worse=unless_worse)
        decided += is_decided
        wrong += is_decided and kept[0] != kept[1]

    assert decided > 800
    assert wrong < 0.01 * decided


def test_a_gain_is_decided_once_all_samples_are_seen_and_never_on_one() -> None:
    assert Gain(0.0, 1.0, 6).is_decided(6)
    assert not Gain(5.0, 0.0, 1).is_decided(6)
    assert Gain(5.0, 0.0, 2).is_decided(6)
    # The limits are the standard error of all six, 0.5 times the root of 3 / 6, and 2.015 of them below zero.
    assert not Gain(0.354, 0.5, 3).is_decided(6)
    assert not Gain(-0.713, 0.5, 3).is_decided(6, unless_worse=True)
    # The root of half of the samples being left, times 6.96 standard errors of three: 2.46 from the limit.
    for mean, unless_worse in ((2.9, False), (2.2, True), (-2.2, False), (-3.4, True)):
        assert Gain(mean, 0.5, 3).is_decided(6, unless_worse=unless_worse)
        assert not Gain(mean, 0.7, 3).is_decided(6, unless_worse=unless_worse)
