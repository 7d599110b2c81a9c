"""The loop of gradient methods: Adam by the book, gradients by small differences, early ends."""

from __future__ import annotations

import math
import threading

import array_api_strict as strict
import numpy as np
import onnx_ir as ir
import pytest

from lowbit.config.refinement import AdaQuant, AdaRound
from lowbit.ops.activations import NONE, activation_of
from lowbit.refine.adaround import RoundedRows
from lowbit.refine.gradient import Adam, Batch, Quantizer, TunedRows, Tuner, to_codes

_RELU = activation_of(ir.node("Relu", [ir.val("x")]), last_axis=False)


def test_adam_is_the_textbooks() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=7)
    expected, found = values.copy(), values.copy()
    adam, mean, power = Adam(found, 0.05), np.zeros(7), np.zeros(7)

    for step in range(1, 40):
        gradient = rng.normal(size=7) * 10.0 ** rng.integers(-4, 3)
        mean, power = 0.9 * mean + 0.1 * gradient, 0.999 * power + 0.001 * gradient**2
        unbiased = mean / (1 - 0.9**step), power / (1 - 0.999**step)
        expected -= 0.05 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        adam.step(found, gradient.copy())

    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_adam_goes_on_with_some_values_as_if_they_were_all() -> None:
    rng = np.random.default_rng(1)
    values, chosen = rng.normal(size=6), np.array([1, 4])
    together, apart = values.copy(), values.copy()
    gradients = [rng.normal(size=6) for _ in range(10)]
    adam = Adam(together, 0.1)
    for gradient in gradients:
        adam.step(together, gradient.copy())

    adam = Adam(apart, 0.1)
    for gradient in gradients[:5]:
        adam.step(apart, gradient.copy())
    adam.keep(chosen)
    some = apart[chosen]
    for gradient in gradients[5:]:
        adam.step(some, gradient[chosen])

    np.testing.assert_allclose(some, together[chosen], rtol=1e-12)


def test_a_quantizer_rounds_and_saturates_and_lets_gradients_through_inside() -> None:
    quantizer = Quantizer(scale=0.5, low=-4.0, high=3.0)
    y = np.array([-9.0, -2.0, -0.3, 0.25, 0.75, 1.5, 1.6])

    found, back = quantizer.apply(y), quantizer.back(y, np.full(7, 2.0))

    np.testing.assert_array_equal(found, [-2.0, -2.0, -0.5, 0.0, 1.0, 1.5, 1.5])
    np.testing.assert_array_equal(back, [0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0])


def test_codes_stay_within_their_limits() -> None:
    scale = np.array([[[0.5, 0.5, 0.25]]])
    limits = (np.full((1, 1, 3), -3.0), np.full((1, 1, 3), 2.0))

    found = to_codes(scale, limits)(np.array([[[9.0, -9.0, 0.3]]]))

    np.testing.assert_array_equal(found, [[[1.0, -1.5, 0.25]]])


def test_tuned_rows_are_seen_rounded_and_moved_as_floats() -> None:
    weight = np.array([[[0.4, -1.2]]])
    rows = TunedRows(weight, np.rint, rate=0.1)

    np.testing.assert_array_equal(rows.weights(), [[[0.0, -1.0]]])
    own = rows.step(np.array([[[1.0, -1.0]]]), 0)

    # Adam's first step is the rate, whatever the gradient's size.
    np.testing.assert_allclose(rows.result(), [[[0.3, -1.1]]], atol=1e-6)
    assert (own, rows.settled) == (0.0, False)
    np.testing.assert_array_equal(weight, [[[0.4, -1.2]]])


class Recorder:
    """Rows that keep the gradients they are given and never move."""

    def __init__(self, weight: np.ndarray, settles_after: int | None = None) -> None:
        self.weight, self.gradients, self._last = weight, [], settles_after

    def weights(self) -> np.ndarray:
        return self.weight

    def step(self, gradient: np.ndarray, at: int) -> float:
        self.gradients.append(gradient.copy())
        return float(at)

    @property
    def settled(self) -> bool:
        return self._last is not None and len(self.gradients) >= self._last

    def result(self) -> np.ndarray:
        return self.weight


def _problem(samples: int = 1, columns: int = 20, seed: int = 2):
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 1))
    batches = [
        Batch(rng.normal(size=(2, 4, columns)), np.abs(rng.normal(size=(2, 3, columns))))
        for _ in range(samples)
    ]
    return weight, bias, batches


def _loss(weight, bias, batch) -> float:
    y = np.maximum(weight @ batch.patches + bias, 0)
    return float(np.square(y - batch.targets).sum()) / batch.patches.shape[2]


def test_gradients_are_those_of_small_differences() -> None:
    weight, bias, batches = _problem()
    rows = Recorder(weight)
    config = AdaQuant(num_iterations=1, update_bias=True)

    trace = Tuner(config, _RELU, None, (1,), threading.Event()).tune(
        rows, bias.copy(), batches, 1e-9
    )

    (gradient,) = rows.gradients
    for at in [(0, 0, 0), (1, 2, 3), (0, 1, 2)]:
        step = np.zeros_like(weight)
        step[at] = 1e-6
        slope = (
            _loss(weight + step, bias, batches[0]) - _loss(weight - step, bias, batches[0])
        ) / 2e-6
        assert gradient[at] == pytest.approx(slope, rel=1e-4, abs=1e-6)
    assert trace.points == ((0, pytest.approx(_loss(weight, bias, batches[0])), 0.0),)


def test_the_bias_goes_down_its_own_gradient() -> None:
    weight, bias, batches = _problem()
    tuned = bias.copy()
    config = AdaQuant(num_iterations=1, update_bias=True)

    Tuner(config, _RELU, None, (1,), threading.Event()).tune(Recorder(weight), tuned, batches, 0.01)

    for at in np.ndindex(bias.shape):
        step = np.zeros_like(bias)
        step[at] = 1e-6
        slope = _loss(weight, bias + step, batches[0]) - _loss(weight, bias - step, batches[0])
        # Adam's first step has the size of the rate.
        expected = bias[at] - 0.01 * math.copysign(1.0, slope) if abs(slope) > 1e-9 else bias[at]
        assert tuned[at] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "config", [AdaQuant(num_iterations=3), AdaRound(num_iterations=3, update_bias=True)]
)
def test_a_bias_that_is_not_tuned_stays(config) -> None:
    """AdaRound's rate is that of its roundings: its bias is set in closed form afterwards."""
    weight, bias, batches = _problem()
    tuned = bias.copy()

    Tuner(config, _RELU, None, (1,), threading.Event()).tune(Recorder(weight), tuned, batches, 0.1)

    np.testing.assert_array_equal(tuned, bias)


def test_the_output_is_quantized_before_it_is_compared() -> None:
    """Where the output saturates no gradient comes back."""
    weight, patches = np.ones((1, 1, 1)), np.array([[[0.2, 5.0]]])
    targets = np.zeros((1, 1, 2))
    rows = Recorder(weight)
    quantizer = Quantizer(scale=1.0, low=0.0, high=3.0)

    trace = Tuner(AdaQuant(num_iterations=1), NONE, quantizer, (1,), threading.Event()).tune(
        rows, np.zeros((1, 1, 1)), [Batch(patches, targets)], 1e-9
    )

    # Outputs 0 and 3 for targets of 0: the error is (0 + 9) / 2, and the second column is beyond.
    assert trace.points[0][1] == 4.5
    assert rows.gradients[0].item() == 0.0


def test_a_step_sees_some_columns_of_its_samples() -> None:
    weight, bias, batches = _problem(samples=5, columns=1000)
    seen = []

    class Spy(list):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

    config = AdaQuant(num_iterations=4, batch_size=2, num_batches=3)
    tuner = Tuner(config, _RELU, None, (1,), threading.Event())
    tuner.tune(Recorder(weight), bias, Spy(batches), 0.1)

    assert len(seen) == 4 * 2 * 3
    assert set(seen) <= set(range(5))
    # Of one batch no sample comes twice.
    assert all(len(set(seen[i : i + 2])) == 2 for i in range(0, len(seen), 2))
    joined = tuner._batch(batches, np.random.default_rng(0))
    assert joined.patches.shape == (2, 4, 6 * 32)
    assert joined.targets.shape == (2, 3, 6 * 32)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_inputs_are_the_quantized_models_as_often_as_asked_for(ratio: float) -> None:
    quantized, floats = np.zeros((1, 50, 100)), np.ones((1, 50, 100))
    batch = Batch(quantized, np.zeros((1, 1, 100)), floats)
    tuner = Tuner(AdaQuant(drop_ratio=ratio), NONE, None, (1,), threading.Event())

    mixed = tuner._batch([batch], np.random.default_rng(0))

    assert mixed.patches.mean() == pytest.approx(1 - ratio, abs=0.02)


def test_it_ends_when_asked_to_when_settled_and_after_all_steps() -> None:
    weight, bias, batches = _problem()
    config = AdaQuant(num_iterations=30)
    stop = threading.Event()

    def steps(rows) -> int:
        return Tuner(config, NONE, None, (1,), stop).tune(rows, bias, batches, 0.1).steps

    assert steps(Recorder(weight)) == 30
    assert steps(Recorder(weight, settles_after=7)) == 7
    stop.set()
    assert steps(Recorder(weight)) == 1


def test_errors_are_noted_at_the_period_and_at_the_end() -> None:
    weight, bias, batches = _problem()

    def noted(**fields) -> list[int]:
        tuner = Tuner(AdaQuant(**fields), NONE, None, (1,), threading.Event())
        return [at for at, _, _ in tuner.tune(Recorder(weight), bias, batches, 0.1).points]

    assert noted(num_iterations=25, log_period=10) == [0, 10, 20, 24]
    assert noted(num_iterations=40) == [*range(0, 40, 4), 39]


def test_a_tenth_of_the_steps_without_gain_ends_it_early() -> None:
    weight, bias, batches = _problem()
    config = AdaQuant(num_iterations=100, early_stop=True)

    trace = Tuner(config, NONE, None, (1,), threading.Event()).tune(
        Recorder(weight), bias, batches, 0.1
    )

    # Rows that never move have the same error in the second tenth as in the first.
    assert trace.steps == 20


def test_adaround_goes_by_its_own_loss_once_that_has_set_in() -> None:
    """The recorder's own loss rises with each step, so the first tenth after the start is the best."""
    weight, bias, batches = _problem()
    config = AdaRound(num_iterations=100, warm_start=0.4, early_stop=True)

    trace = Tuner(config, NONE, None, (1,), threading.Event()).tune(
        Recorder(weight), bias, batches, 0.1
    )

    assert trace.steps == 60


@pytest.mark.parametrize("kind", ["adaround", "adaquant"])
def test_arrays_that_allow_nothing_but_the_array_api_give_the_same(kind: str) -> None:
    rng = np.random.default_rng(3)
    patches = rng.standard_normal((2, 5, 40)).astype(np.float32)
    weight = rng.standard_normal((2, 3, 5)).astype(np.float32)
    targets, scale = weight @ patches, np.full_like(weight, 0.3)
    config = AdaRound(num_iterations=40)

    def solved(put):
        w, s = put(weight.copy()), put(scale)
        low, high = put(np.floor(weight / scale)), put(np.ceil(weight / scale))
        if kind == "adaround":
            rows = RoundedRows(w, s, (low, high), config, 0.1)
        else:
            rows = TunedRows(w, to_codes(s, (low, high)), 0.01)
        batches = [Batch(put(patches), put(targets))]
        tuner = Tuner(config, NONE, None, (1, 2), threading.Event())
        tuner.tune(rows, put(np.zeros((2, 3, 1), np.float32)), batches, 0.1)
        return np.asarray(rows.result())

    np.testing.assert_allclose(solved(strict.asarray), solved(np.asarray), rtol=1e-5, atol=1e-6)
