"""Steps are kept only if they help, measured here by an onnxruntime of its own."""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.calibrate.statistics import Stats
from lowbit.config.methods import MinMax
from lowbit.config.presets import find_preset
from lowbit.config.transforms import CrossLayerEqualization, FloatTransform, SmoothQuant
from lowbit.data import open_data
from lowbit.data.split import split
from lowbit.graph import io, sharing
from lowbit.graph.session import model_inputs
from lowbit.ops.traits import OPERATORS
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Clock, Pipeline
from lowbit.search.keep_if_better import (
    as_collected,
    has_optional_steps,
    keep_what_helps,
    step_of,
)
from lowbit.state import Loaded
from lowbit.targets.builtin import find_target
from lowbit.transforms import TransformedModel

_FEEDS = small_feeds(24)
_STEPS = ("bias correction", "equalization")


def _config(preset: str, **changes: object) -> lowbit.QuantConfig:
    given = {
        "refinement": None,
        "keep_only_if_better": True,
        "equalization": CrossLayerEqualization(),
        "smooth_quant": None,
        "sensitivity": None,
        "power_of_two_fit": None,
        "centering": None,
    }
    return msgspec.structs.replace(find_preset(preset), **{**given, **changes})


def _uneven(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Scale output channels of the convolutions so that one scale per tensor fits none."""
    rng = np.random.default_rng(seed)
    for tensor in model.graph.initializer:
        weight = numpy_helper.to_array(tensor)
        if weight.ndim == 4:
            factor = np.exp(rng.normal(0, 1.0, (len(weight), 1, 1, 1)))
            tensor.CopyFrom(
                numpy_helper.from_array((weight * factor).astype(np.float32), tensor.name)
            )
    return model


def _decibels(model: onnx.ModelProto, quantized: onnx.ModelProto, feeds: list) -> float:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    one, other = (ort.InferenceSession(m.SerializeToString(), options) for m in (model, quantized))
    ratios = []
    for feed in feeds:
        a, b = one.run(None, feed)[0], other.run(None, feed)[0]
        ratios.append(10 * np.log10(np.square(a).sum() / np.square(a - b).sum()))
    return float(np.mean(ratios))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("preset", ["A8W8", "XINT8"])
def test_what_is_kept_is_no_worse_than_no_step_on_validation_samples(
    preset: str, seed: int
) -> None:
    model = _uneven(small_cnn(), seed)
    parts = split(open_data(_FEEDS, model_inputs(io.load(model))), None, 4)
    fitting, validation = list(parts.fitting()), list(parts.validation())
    assert len(validation) == 3

    kept = lowbit.quantize(model, data=_FEEDS, config=_config(preset))
    none = lowbit.quantize(
        model,
        data=fitting,
        config=_config(preset, keep_only_if_better=False, bias_correction=False, equalization=None),
    )

    steps = kept.report.steps
    assert tuple(step.name for step in steps) == _STEPS
    assert kept.config.bias_correction == steps[0].kept
    assert (kept.config.equalization is not None) == steps[1].kept
    gain = _decibels(model, kept.model, validation) - _decibels(model, none.model, validation)
    told = [10 * np.log10(step.before / step.after) for step in steps if step.kept]
    assert gain == pytest.approx(sum(told), abs=1e-3)
    assert gain >= 0


def test_calibration_does_not_see_the_validation_samples() -> None:
    result = lowbit.quantize(small_cnn(), data=_FEEDS, config=_config("A8W8"))

    assert result.stats.samples == 21
    assert result.report.calibration_samples == 21  # the other three are held out


def test_progress_counts_the_samples_of_the_calibration_that_runs() -> None:
    feeds, told = small_feeds(48), []

    lowbit.quantize(
        _uneven(small_cnn(), 1),
        data=feeds,
        config=_config("A8W8"),
        progress=lambda *p: told.append(p),
    )

    counts = [(done, total) for stage, done, total in told if stage == "calibrate" and total]
    ends = [(done, total) for done, total in counts if done == total]
    # Two models that are compared, and the rest of the 42 for the one that is kept.
    assert ends == [(16, 16), (16, 16), (26, 26)]
    assert max(done for done, _ in counts) == 26


def test_large_samples_that_would_not_change_the_choice_are_not_run(monkeypatch) -> None:
    model, feeds = _uneven(small_cnn(), 1), small_feeds(48)

    every = lowbit.quantize(model, data=feeds, config=_config("XINT8")).report.steps
    monkeypatch.setattr(sharing, "_LARGE", 1)
    some = lowbit.quantize(model, data=feeds, config=_config("XINT8")).report.steps

    samples = [[int(step.note.split()[-2]) for step in steps] for steps in (every, some)]
    assert set(samples[0]) == {6}
    assert set(samples[1]) <= {4, 6}
    assert 4 in samples[1]
    assert [step.kept for step in some] == [step.kept for step in every]


def _calibrated_on(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that is told of the number of samples of each calibration."""
    found: list[int] = []
    collect = stages.collect

    def counted(model, plan, data, **settings):
        stats = collect(model, plan, data, **settings)
        found.append(stats.samples)
        return stats

    monkeypatch.setattr(stages, "collect", counted)
    return found


@pytest.mark.parametrize("preset", ["A8W8", "XINT8"])
def test_of_many_samples_some_compare_models_and_all_make_the_one_that_is_kept(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, feeds = _uneven(small_cnn(), 1), small_feeds(48)
    fitting = list(split(open_data(feeds, model_inputs(io.load(model))), None, 4).fitting())
    counts = _calibrated_on(monkeypatch)

    kept = lowbit.quantize(model, data=feeds, config=_config(preset))

    assert len(kept.report.steps) == 2
    assert counts == [16, 16, len(fitting) - 16]
    assert kept.stats.samples == len(fitting)
    settled = msgspec.structs.replace(kept.config, keep_only_if_better=False)
    direct = lowbit.quantize(model, data=fitting, config=settled)
    assert direct.model.graph == kept.model.graph


def test_fewer_large_samples_compare_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_LARGE", 1)
    counts, told = _calibrated_on(monkeypatch), []

    kept = lowbit.quantize(
        _uneven(small_cnn(), 1),
        data=small_feeds(24),
        config=_config("A8W8"),
        progress=lambda stage, done, total: told.append((stage, done, total)),
    )

    assert counts == [8, 8, 13]
    assert kept.stats.samples == 21
    whole = [total for stage, done, total in told if stage == "calibrate" and done == 1]
    assert whole == counts


def test_a_model_with_nothing_to_compare_is_calibrated_once(monkeypatch) -> None:
    counts = _calibrated_on(monkeypatch)

    lowbit.quantize(small_cnn(), data=small_feeds(48), config=_config("A8W8", equalization=None))

    assert counts == [42]


def test_statistics_that_depend_on_order_are_collected_again_from_all_samples(monkeypatch) -> None:
    activation = msgspec.structs.replace(
        find_preset("A8W8").activation, method=MinMax(moving_average=0.1)
    )
    config = _config("A8W8", activation=activation)
    counts = _calibrated_on(monkeypatch)

    kept = lowbit.quantize(small_cnn(), data=small_feeds(48), config=config)

    assert counts == [16, 16, 42]
    assert kept.stats.samples == 42


def test_a_step_that_is_not_asked_for_is_not_tried() -> None:
    result = lowbit.quantize(small_cnn(), data=_FEEDS, config=_config("A8W8", equalization=None))

    assert [step.name for step in result.report.steps] == ["bias correction"]


def test_kept_statistics_bring_the_choice_they_were_made_with() -> None:
    model = small_cnn()
    plain = _config("A8W8", equalization=None, keep_only_if_better=False)
    stats = lowbit.quantize(model, data=_FEEDS, config=plain).stats

    again = lowbit.quantize(model, data=_FEEDS, config=_config("A8W8"), stats=stats)

    assert again.config.equalization is None
    assert not again.report.steps


def _transformer() -> onnx.ModelProto:
    """Return a normalization of very uneven channels before a matrix."""
    rng = np.random.default_rng(2)
    constants = {
        "gamma": np.exp(rng.normal(0, 1.5, 32)),
        "beta": rng.normal(size=32),
        "w": rng.normal(size=(32, 32)),
        "v": rng.normal(size=(32, 8)),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("LayerNormalization", ["a", "gamma", "beta"], ["n"], name="norm"),
        helper.make_node("MatMul", ["n", "v"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "transformer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 8])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _tokens() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [{"x": rng.normal(size=(1, 16, 32)).astype(np.float32)} for _ in range(24)]


def test_smooth_quant_is_tried_and_kept_where_it_helps() -> None:
    result = lowbit.quantize(
        _transformer(), data=_tokens(), config=_config("U8S8", smooth_quant=SmoothQuant())
    )

    (step,) = [step for step in result.report.steps if step.name == "SmoothQuant"]
    assert step.kept
    assert step.after < step.before
    assert result.config.smooth_quant == SmoothQuant()
    assert result.stats.smoothed
    assert any(note.startswith("smoothed the input of ") for note in result.report.notes)


def test_equalization_is_not_tried_where_there_is_nothing_to_equalize() -> None:
    model = small_cnn()
    rng = np.random.default_rng(0)
    inputs = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input
    }
    ((name, shape),) = inputs.items()
    weight = numpy_helper.from_array(rng.normal(size=(8, shape[1], 3, 3)).astype("f"), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", [name, "w"], ["y"], "only", kernel_shape=[3, 3])],
        "one layer",
        list(model.graph.input),
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    single = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    result = lowbit.quantize(single, data=_FEEDS, config=_config("A8W8"))

    assert [step.name for step in result.report.steps] == ["bias correction"]
    assert result.config.equalization is None


def test_smooth_quant_is_not_tried_where_there_is_nothing_to_smooth() -> None:
    config = _config("A8W8", smooth_quant=SmoothQuant())

    result = lowbit.quantize(small_cnn(), data=_FEEDS, config=config)

    assert tuple(step.name for step in result.report.steps) == _STEPS
    assert result.config.smooth_quant is None


def test_statistics_of_an_unsmoothed_model_leave_it_unsmoothed() -> None:
    model, plain = _transformer(), _config("U8S8", keep_only_if_better=False, equalization=None)
    stats = lowbit.quantize(model, data=_tokens(), config=plain).stats

    config = _config("U8S8", smooth_quant=SmoothQuant())
    again = lowbit.quantize(model, data=_tokens(), config=config, stats=stats)

    assert again.config.smooth_quant is None


def test_a_chosen_class_is_measured_by_what_it_is_chosen_from() -> None:
    model = small_cnn()
    last = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("ArgMax", [last], ["class"], "class", axis=1))
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("class", onnx.TensorProto.INT64, None)
    )

    result = lowbit.quantize(model, data=_FEEDS, config=_config("A8W8"))

    steps = {step.name: step for step in result.report.steps}
    assert steps["bias correction"].after < steps["bias correction"].before
    assert result.report.verdict.worst.output == "class (before its selection)"


# Which steps are optional


class Doubled(
    FloatTransform, msgspec.Struct, frozen=True, kw_only=True, tag="doubled-weights-of-a-test"
):
    """A transform that is there to be had as it is."""

    is_optional: ClassVar[bool] = False

    def implementation(self):
        return self

    def applies(self, _model, _config) -> bool:
        return True

    def apply(self, model, _config, _context) -> TransformedModel:
        return TransformedModel(model, ("doubled nothing",))


@pytest.mark.parametrize(
    ("changes", "optional"),
    [
        ({}, True),
        ({"keep_only_if_better": False}, False),
        ({"equalization": None}, True),
        ({"equalization": None, "bias_correction": False}, False),
        ({"equalization": Doubled(), "bias_correction": False}, False),
        ({"equalization": None, "bias_correction": False, "smooth_quant": SmoothQuant()}, True),
    ],
)
def test_steps_are_optional_if_asked_for_and_if_they_may_be_dropped(changes, optional) -> None:
    assert has_optional_steps(_config("A8W8", **changes)) is optional


def test_a_transform_that_is_not_optional_is_applied_and_not_tried() -> None:
    config = _config("A8W8", equalization=Doubled())

    result = lowbit.quantize(small_cnn(), data=_FEEDS, config=config)

    assert [step.name for step in result.report.steps] == ["bias correction"]
    assert result.config.equalization == Doubled()
    assert "doubled nothing" in result.report.notes


@pytest.mark.parametrize("keep_only_if_better", [False, True])
@pytest.mark.parametrize("equalized", [False, True])
@pytest.mark.parametrize("smoothed", [False, True])
def test_statistics_say_which_transforms_they_were_made_with(
    keep_only_if_better, equalized, smoothed
) -> None:
    config = _config("A8W8", smooth_quant=SmoothQuant(), keep_only_if_better=keep_only_if_better)
    stats = Stats({}, 8, equalized=equalized, smoothed=smoothed)

    found = as_collected(config, stats)

    # A configuration that takes every step as asked for is not changed.
    assert (found.equalization is not None) == (equalized or not keep_only_if_better)
    assert (found.smooth_quant is not None) == (smoothed or not keep_only_if_better)


def test_the_note_of_a_step_is_the_gain_of_the_validation_samples() -> None:
    result = lowbit.quantize(small_cnn(), data=_FEEDS, config=_config("XINT8"))

    for step in result.report.steps:
        gain = 10 * np.log10(step.before / step.after)
        told, error = re.fullmatch(
            r"([+-]\d+\.\d\d) dB \(standard error (\d+\.\d\d)\) on 3 samples", step.note
        ).groups()
        assert float(told) == pytest.approx(gain, abs=0.006)
        if abs(gain - float(error)) > 0.006:
            assert step.kept == (gain > float(error))


@pytest.mark.parametrize(
    ("rise", "better", "unless_worse"),
    [
        ([0.9, 1.1], True, True),
        ([-3.0, 4.0], False, True),  # +0.5, standard error 3.5
        ([-4.0, 3.0], False, True),
        ([-1.1, -0.9], False, False),
        ([0.0, 0.0], False, False),
    ],
)
def test_a_step_chosen_by_sensitivity_is_dropped_only_if_it_is_worse(
    rise, better, unless_worse
) -> None:
    before = np.full(2, 20.0)

    for given, kept in ((False, better), (True, unless_worse)):
        step = step_of("a step", before, before + np.array(rise), unless_worse=given)
        assert step.kept is kept


def test_a_plan_that_is_given_is_kept_through_all_steps() -> None:
    config = _config("A8W8")
    given = lowbit.plan(small_cnn(), config=config)

    result = lowbit.quantize(small_cnn(), data=_FEEDS, config=config, plan=given)

    assert result.plan == given
    assert tuple(step.name for step in result.report.steps) == _STEPS


def test_without_samples_nothing_can_be_measured() -> None:
    state = stages.normalize(
        Loaded(
            loaded=io.load(small_cnn()),
            samples=None,
            config=_config("A8W8"),
            target=find_target("ryzen-ai"),
            operators=OPERATORS,
        )
    )

    with pytest.raises(ValueError, match="measured on samples only"):
        keep_what_helps(Pipeline(Clock(lambda *_: None)), state, None)
