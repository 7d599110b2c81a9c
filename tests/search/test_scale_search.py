"""Scales chosen by outputs: found where they help, measured here by an onnxruntime of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn
from helpers.wide_models import wide_feeds, wide_network

import lowbit
from lowbit.api.quantize import planned_state
from lowbit.config.methods import MinMax
from lowbit.config.presets import find_preset
from lowbit.config.scale_search import ScaleSearch
from lowbit.numerics.formats import DoubleArray
from lowbit.search import scale_search
from lowbit.search.scale_search import Group, noise_of, noisy_groups, tuned_groups


def _config(preset: str, **changes: object) -> lowbit.QuantConfig:
    """Return ranges that hold all that was seen, and nothing but the search that could better them."""
    config = find_preset(preset).with_method(MinMax())
    given = {
        "equalization": None,
        "smooth_quant": None,
        "bias_correction": False,
        "refinement": None,
        "sensitivity": None,
        "scale_search": ScaleSearch(samples=8),
    }
    return msgspec.structs.replace(config, **{**given, **changes})


def _quantized(model: onnx.ModelProto, feeds: list, config: lowbit.QuantConfig) -> lowbit.Result:
    return lowbit.quantize(model, data=feeds, config=config, promote=False, allow_ruined=True)


def _decibels(model: onnx.ModelProto, quantized: onnx.ModelProto, feeds: list) -> DoubleArray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    one, other = (ort.InferenceSession(m.SerializeToString(), options) for m in (model, quantized))
    pairs = [(one.run(None, feed)[0], other.run(None, feed)[0]) for feed in feeds]
    return np.array([10 * np.log10(np.square(a).sum() / np.square(a - b).sum()) for a, b in pairs])


@pytest.mark.parametrize("preset", ["A8W8", "XINT8", "U8S8_PERCHANNEL"])
def test_a_range_that_outputs_do_not_need_is_clipped_and_other_samples_gain(preset: str) -> None:
    model, feeds, others = wide_network(), wide_feeds(24), wide_feeds(12, seed=1)

    plain = _quantized(model, feeds, _config(preset, scale_search=None))
    found = _quantized(model, feeds, _config(preset))

    (step,) = (s for s in found.report.steps if s.name == "scales by outputs")
    assert step.kept
    assert step.after < step.before
    before, after = (float(r.params.tensors["b"].scale) for r in (plain, found))
    assert after < before / 2
    if preset == "XINT8":
        assert np.log2(before / after) == int(np.log2(before / after))
    gain = _decibels(model, found.model, others) - _decibels(model, plain.model, others)
    assert gain.mean() > 3
    assert {"b"} <= {row.tensor for row in found.config.tensors}
    again = _quantized(model, feeds, found.config)
    assert again.config == found.config
    np.testing.assert_array_equal(again.params.tensors["b"].scale, found.params.tensors["b"].scale)


def test_the_same_samples_give_the_samewide_network() -> None:
    one, other = (_quantized(wide_network(), wide_feeds(24), _config("A8W8")) for _ in range(2))

    assert one.model.SerializeToString() == other.model.SerializeToString()


def test_what_is_worse_on_held_out_samples_is_dropped(monkeypatch) -> None:
    model, feeds = wide_network(), wide_feeds(24)
    plain = _quantized(model, feeds, _config("A8W8", scale_search=None))
    (name,) = {"b"} & {row.name for row in plain.plan.activations()}
    monkeypatch.setattr(scale_search, "_factors", lambda *_: {name: 1e-3})  # clips all there is

    found = _quantized(model, feeds, _config("A8W8"))

    (step,) = (s for s in found.report.steps if s.name == "scales by outputs")
    assert not step.kept
    assert step.after > step.before
    assert found.config.tensors == ()
    assert found.model.graph == plain.model.graph


def test_random_data_and_a_given_plan_leave_scales_as_they_are() -> None:
    config, model = _config("A8W8", keep_only_if_better=False), wide_network()
    plan = lowbit.plan(model, config=config)

    planned = lowbit.quantize(model, data=wide_feeds(8), config=config, plan=plan)
    random = lowbit.quantize(model, data="random", config=config)

    assert not planned.report.steps
    assert not random.report.steps


def test_a_model_so_large_that_it_runs_in_parts_is_left_as_it_is(monkeypatch) -> None:
    monkeypatch.setattr(scale_search, "is_run_in_parts", lambda state: True)

    found = _quantized(wide_network(), wide_feeds(24), _config("A8W8"))

    assert not found.report.steps
    assert found.config.tensors == ()


def test_scores_that_decide_between_classes_are_not_tried() -> None:
    state = planned_state(small_cnn(), config=_config("A8W8"))

    scores = {row.name for row in state.plan.activations() if row.headroom is not None}
    tuned = {name for group in tuned_groups(state) for name in group}
    assert scores
    assert tuned
    assert not scores & tuned


class _Noisy:
    """A tensor whose noise is least at a factor, and does not depend on the sample but for some scatter."""

    def __init__(self, best: float, scatter: float = 0.0) -> None:
        self._best, self._scatter = best, scatter
        self.asked: list[float] = []

    def __call__(self, factors: Mapping[str, float], samples: Sequence[int]) -> DoubleArray:
        (factor,) = set(factors.values())
        self.asked.append(factor)
        off = abs(np.log2(factor / self._best))
        signs = np.where(np.arange(len(samples)) % 2, 1.0, -1.0)
        return 30.0 - off + self._scatter * signs * (factor != 1.0)


def _best(model: _Noisy, *, is_power_of_two: bool = False) -> float:
    line = scale_search._Line(("t",), model, range(8))
    return line.best(is_power_of_two=is_power_of_two)


@pytest.mark.parametrize("wanted", [0.125, 0.2, 0.5, 0.84, 1.0, 1.3, 3.0])
def test_the_best_factor_is_found_within_a_quarter_of_a_power_of_two(wanted: float) -> None:
    model = _Noisy(wanted)

    found = _best(model)

    assert abs(np.log2(found / wanted)) <= 0.125 + 1e-9
    assert len(model.asked) == len(set(model.asked)) <= 12


@pytest.mark.parametrize("wanted", [0.06, 0.25, 0.5, 1.0, 2.0])
def test_powers_of_two_stay_such(wanted: float) -> None:
    found = _best(_Noisy(wanted), is_power_of_two=True)

    assert found == 2.0 ** round(np.log2(wanted))


def test_factors_have_bounds() -> None:
    assert _best(_Noisy(1e-6)) >= 1 / 32
    assert _best(_Noisy(1e6)) <= 8


def test_a_gain_within_its_scatter_is_none() -> None:
    assert _best(_Noisy(0.5, scatter=0.1), is_power_of_two=True) == 0.5
    assert _best(_Noisy(0.5, scatter=3.0), is_power_of_two=True) == 1.0


def test_the_noisiest_come_first_and_negligible_ones_not_at_all() -> None:
    noise = {"a": 1e-3, "b": 1e-1, "c": 1e-7, "d": 1e-2}
    asked: list[Sequence[int]] = []

    def decibels(factors: Mapping[str, float], samples: Sequence[int]) -> DoubleArray:
        asked.append(list(samples))
        return np.full(len(samples), -10 * np.log10(sum(noise[name] for name in factors)))

    groups: list[Group] = [("a",), ("b", "c"), ("c",), ("d",)]

    assert noisy_groups(groups, decibels, 16) == [("b", "c"), ("d",), ("a",)]
    assert asked == [[0, 4, 8, 12]] * 4
    assert noisy_groups(groups, decibels, 2) == [("b", "c"), ("d",), ("a",)]
    assert asked[-1] == [0, 1]


def test_of_many_groups_the_noisiest_are_tried() -> None:
    groups: list[Group] = [(str(number),) for number in range(100)]

    def decibels(factors: Mapping[str, float], samples: Sequence[int]) -> DoubleArray:
        (name,) = factors
        return np.full(len(samples), -10 * np.log10(1 + int(name)))

    found = noisy_groups(groups, decibels, 16)

    assert found == [(str(number),) for number in range(99, 51, -1)]


def test_noise_is_the_mean_of_powers() -> None:
    assert noise_of(np.array([10.0, 20.0])) == pytest.approx((0.1 + 0.01) / 2)
    assert noise_of(np.zeros(0)) == 0.0
