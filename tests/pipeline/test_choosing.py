"""Steps are kept only if they help, judged here by an onnxruntime of its own."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.api import model_inputs
from lowbit.config.presets import find_preset
from lowbit.config.transforms import CrossLayerEqualization, SmoothQuant
from lowbit.data import open_data
from lowbit.data.split import split

_FEEDS = small_feeds(24)
_STEPS = ("bias correction", "equalization")


def _config(preset: str, **changes: object) -> lowbit.QuantConfig:
    given = {
        "refinement": None,
        "keep_only_if_better": True,
        "equalization": CrossLayerEqualization(),
        "smooth_quant": None,
    }
    return msgspec.structs.replace(find_preset(preset), **{**given, **changes})


def _uneven(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Scale output channels of the convolutions so that one scale a tensor fits none."""
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
def test_what_is_chosen_is_no_worse_than_no_step_on_the_judges(preset: str, seed: int) -> None:
    model = _uneven(small_cnn(), seed)
    parts = split(open_data(_FEEDS, model_inputs(lowbit.graph.io.load(model))), None, 4)
    fitting, judging = list(parts.fitting()), list(parts.judging())
    assert len(judging) == 3

    chosen = lowbit.quantize(model, data=_FEEDS, config=_config(preset))
    none = lowbit.quantize(
        model,
        data=fitting,
        config=_config(preset, keep_only_if_better=False, bias_correction=False, equalization=None),
    )

    steps = chosen.report.steps
    assert tuple(step.name for step in steps) == _STEPS
    assert chosen.config.bias_correction == steps[0].kept
    assert (chosen.config.equalization is not None) == steps[1].kept
    gain = _decibels(model, chosen.model, judging) - _decibels(model, none.model, judging)
    told = [10 * np.log10(step.before / step.after) for step in steps if step.kept]
    assert gain == pytest.approx(sum(told), abs=1e-3)
    assert gain >= 0


def test_calibration_does_not_see_the_judges() -> None:
    result = lowbit.quantize(small_cnn(), data=_FEEDS, config=_config("A8W8"))

    assert result.stats.samples == 21
    assert result.report.calibration_samples == 21  # the other three judged


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


def test_smoothing_is_tried_and_kept_where_it_helps() -> None:
    result = lowbit.quantize(
        _transformer(), data=_tokens(), config=_config("U8S8", smooth_quant=SmoothQuant())
    )

    (step,) = [step for step in result.report.steps if step.name == "smoothing"]
    assert step.kept
    assert step.after < step.before
    assert result.config.smooth_quant == SmoothQuant()
    assert result.stats.smoothed
    assert any(note.startswith("smoothed the input of 1 layers") for note in result.report.notes)


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


def test_smoothing_is_not_tried_where_there_is_nothing_to_smooth() -> None:
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


def test_without_a_float_output_steps_are_taken_as_asked() -> None:
    model = small_cnn()
    last = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("ArgMax", [last], ["class"], "class", axis=1))
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("class", onnx.TensorProto.INT64, None)
    )

    result = lowbit.quantize(model, data=_FEEDS, config=_config("A8W8"))

    assert not result.report.steps
    assert result.config.bias_correction
    assert result.stats.samples == len(_FEEDS)
