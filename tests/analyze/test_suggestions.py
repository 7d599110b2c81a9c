"""Suggested fixes: which are tried, how they are asked for, and tensors promoted to 16 bits."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.quantizers import activation, pairs_model, scale, weight
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit import IntegerFormat, IntegerSpec, TensorOverride
from lowbit.analyze import causes
from lowbit.analyze.observations import Observation
from lowbit.analyze.quantizers import Constant, find_quantizers, read_constants
from lowbit.analyze.sensitivity import Switch
from lowbit.analyze.suggestions import (
    activation_trials,
    override,
    per_channel,
    promote,
    weight_trials,
    wide_line,
)
from lowbit.graph import io
from lowbit.normalize.normalize import normalize
from lowbit.report.values import Cause
from lowbit.targets.builtin import find_target

SWITCH = Switch("t/switch", "t/scale", None, "t_dq")
WEIGHT_SWITCH = Switch("w/switch", None, "w/float", "w_dq")
ANY = find_target("onnxruntime")
CNN = find_target("ryzen-ai-cnn")


def seen(quantizer, *values: float) -> Observation:
    found = Observation(quantizer)
    found.add(np.float32(values))
    return found


def tried(quantizer, names, target, *values: float):
    found = [Cause(name=name, detail="") for name in names]
    return activation_trials(quantizer, found, seen(quantizer, *values), SWITCH, target)


def test_a_clipped_range_may_be_held_whole() -> None:
    whole, wide = tried(activation(step=0.01), [causes.CLIPPED], ANY, -4.0, 2.0)

    assert whole.what == "the whole range, nothing clipped"
    assert json.loads(whole.config) == {"tensors": [{"tensor": "t", "range": [-4.0, 2.0]}]}
    (scale_of_all,) = whole.changes.values()
    # The lowest integer is -128.
    assert float(scale_of_all) == pytest.approx(4.0 / 128)
    assert wide.what == "int16 (measured as float)"
    assert list(wide.changes) == ["t/switch"]
    assert not wide.changes["t/switch"]


def test_the_whole_range_is_found_at_the_zero_point_there_is() -> None:
    quantizer = activation(scale=scale(0.01, zero=-128))

    whole, _ = tried(quantizer, [causes.CLIPPED], ANY, 0.0, 5.1)

    assert float(whole.changes["t/scale"]) == pytest.approx(5.1 / 255)


def test_a_power_of_two_may_be_a_float_scale_on_another_target() -> None:
    float_scale, in_float = tried(activation(step=0.0625), [causes.POWER, causes.CLIPPED], CNN, 5.0)

    assert float_scale.config == "--preset A8W8"
    assert float_scale.what == "a float scale (not on this target)"
    # That target has no 16 bits: the tensor can stay in float.
    assert in_float.what == "in float"
    assert json.loads(in_float.config) == {"tensors": [{"tensor": "t", "keep": "float"}]}


def test_what_has_16_bits_already_is_not_widened() -> None:
    wide = activation(scale=scale(0.1, low=-(2**15), high=2**15 - 1), format="int16")

    assert tried(wide, [causes.FEW_BITS], ANY, 1.0) == []


@pytest.mark.parametrize(("low", "word"), [(-128, "int16"), (0, "uint16")])
def test_16_bits_keep_the_sign(low, word) -> None:
    quantizer = activation(scale=scale(0.1, low=low, high=low + 255))

    (trial,) = tried(quantizer, [causes.FEW_BITS], ANY, 1.0)

    assert trial.what.startswith(word)


def test_asymmetric_formats_stay_so_when_widened() -> None:
    symmetric = json.loads(wide_line(activation(), IntegerFormat.INT16))
    asymmetric = json.loads(wide_line(activation(scale=scale(0.1, zero=3)), IntegerFormat.INT16))

    assert symmetric["tensors"][0]["spec"] == {"type": "integer", "format": "int16"}
    assert asymmetric["tensors"][0]["spec"] == {
        "type": "integer",
        "format": "int16",
        "symmetric": False,
    }


def test_lines_say_only_what_is_not_the_default_and_can_be_read_back() -> None:
    rows = (
        TensorOverride(tensor="a", spec=IntegerSpec(format=IntegerFormat.INT16, per_channel=True)),
        TensorOverride(tensor="b", keep="float", optional=True),
    )

    line = override(*rows)

    read = [msgspec.convert(row, TensorOverride) for row in json.loads(line)["tensors"]]
    assert tuple(read) == rows
    assert "method" not in line
    assert "range" not in line


# Weights


def test_a_weight_may_have_a_scale_for_each_channel() -> None:
    plain = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    constant = Constant(plain.astype(np.int8), plain, plain)

    fine, in_float = weight_trials(
        weight(op_type="Conv", consumer="conv1"), constant, WEIGHT_SWITCH, find_target("ryzen-ai")
    )

    assert fine.what == "a scale for each channel"
    (row,) = json.loads(fine.config)["tensors"]
    assert row == {
        "tensor": "w",
        "spec": {"type": "integer", "format": "int8", "per_channel": True},
    }
    np.testing.assert_array_equal(fine.changes["w/float"], per_channel(plain, 0, 127))
    assert not fine.changes["w/switch"]
    # That target has no 16-bit weights.
    assert (in_float.what, json.loads(in_float.config)) == ("Conv in float", {"exclude": ["conv1"]})


@pytest.mark.parametrize(
    ("quantizer", "plain", "target"),
    [
        (weight(scale=scale(np.full(4, 0.1), axis=0)), np.ones((4, 3)), ANY),
        (weight(), np.ones(4), ANY),
        (weight(), None, ANY),
        (weight(step=0.125), np.ones((4, 3)), CNN),
    ],
)
def test_where_a_scale_for_each_channel_is_no_fix(quantizer, plain, target) -> None:
    floats = None if plain is None else plain.astype(np.float32)
    constant = Constant(np.ones(4, np.int8), np.ones(4, np.float32), floats)

    trials = weight_trials(quantizer, constant, WEIGHT_SWITCH, target)

    assert "a scale for each channel" not in [trial.what for trial in trials]


def test_a_weight_of_four_bits_gets_eight_not_sixteen() -> None:
    narrow = weight(scale=scale(np.full((4, 1), 0.1), low=0, high=15, axis=0), format="uint4")
    constant = Constant(np.ones(4, np.int8), np.ones(4, np.float32), np.ones((4, 3), np.float32))

    (trial,) = weight_trials(narrow, constant, WEIGHT_SWITCH, ANY)

    assert trial.what == "int8 (measured as float)"
    (row,) = json.loads(trial.config)["tensors"]
    assert row["spec"] == {"type": "integer", "format": "int8", "per_channel": True}


@pytest.mark.parametrize("axis", [0, 1])
def test_each_channel_is_rounded_with_its_own_scale(axis) -> None:
    plain = np.random.default_rng(1).normal(size=(3, 4, 2)).astype(np.float32)
    np.moveaxis(plain, axis, 0)[1] = 0

    got = np.moveaxis(per_channel(plain, axis, 127), axis, 0)

    for channel, found in zip(np.moveaxis(plain, axis, 0), got, strict=True):
        step = max(np.abs(channel).max() / 127, 1e-30)
        np.testing.assert_allclose(found, np.rint(channel / step) * step, rtol=1e-5, atol=1e-7)


# Promoted to 16 bits


def run(model, names, feed):
    proto = io.to_proto(model)
    proto.graph.output.extend(
        onnx.ValueInfoProto(name=name)
        for name in names
        if name not in {output.name for output in proto.graph.output}
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options).run(names, feed)


def test_a_promoted_activation_has_a_scale_256_times_as_fine() -> None:
    model = pairs_model()
    (quantizer,) = (q for q in find_quantizers(model) if q.tensor == "x")
    x = np.random.default_rng(0).uniform(-2, 20, (1, 2, 2, 2)).astype(np.float32)

    wide = promote(model, [quantizer], {})

    (got,) = run(wide, ["xd"], {"x": x})
    # Scale 0.5 and zero point 3 of uint8 become 0.5 / 256 and 768 of uint16.
    step = 0.5 / 256
    want = (np.clip(np.rint(x / step) + 768, 0, 65535) - 768) * step
    np.testing.assert_allclose(got, want, atol=1e-6)
    (before,) = run(model, ["xd"], {"x": x})
    assert np.abs(got - np.clip(x, -1.5, None)).max() < np.abs(before - x).max() / 50
    # The model itself is as it was.
    assert model.graph.initializers["sx"].const_value.numpy() == np.float32(0.5)


def test_both_consumers_of_a_promoted_tensor_read_16_bits() -> None:
    model = pairs_model()
    (quantizer,) = (q for q in find_quantizers(model) if q.tensor == "r")

    wide = promote(model, [quantizer], {})

    one, other, relu = run(wide, ["rd1", "rd2", "r"], {"x": np.full((1, 2, 2, 2), 1.3, np.float32)})
    np.testing.assert_array_equal(one, other)
    # Zero point -128 of int8 is -32768 of int16: the range is 0 to 65535 steps.
    step = 0.125 / 256
    np.testing.assert_allclose(one, np.clip(relu, 0, 65535 * step), atol=step)


def test_a_quantizer_without_a_zero_point_is_promoted_too() -> None:
    model = pairs_model()
    (quantizer,) = (q for q in find_quantizers(model) if q.tensor == "y")
    feed = {"x": np.full((1, 2, 2, 2), 1.3, np.float32)}

    wide, added = run(promote(model, [quantizer], {}), ["y", "a"], feed)

    step = 0.0625 / 256
    np.testing.assert_allclose(wide, np.clip(added, 0, 65535 * step), atol=step)


def test_a_promoted_weight_is_rounded_to_16_bits_and_its_bias_is_float() -> None:
    quantized = lowbit.quantize(small_cnn(), data=small_feeds(4), preset="A8W8").quantized
    quantizers = find_quantizers(quantized)
    floats = normalize(io.load(small_cnn()), small_feeds(1)[0])
    constants = read_constants(quantized, floats, quantizers)
    (quantizer,) = (q for q in quantizers if q.tensor == "w3")

    wide = promote(quantized, [quantizer], constants)

    (gemm,) = (node for node in wide.graph if node.op_type == "Gemm")
    weight_, bias = (wide.graph.initializers[v.name].const_value.numpy() for v in gemm.inputs[1:])
    plain = floats.graph.initializers["w3"].const_value.numpy()
    step = np.abs(plain).max() / 32767
    np.testing.assert_allclose(weight_, np.rint(plain / step) * step, atol=step / 100)
    assert 0 < np.abs(weight_ - plain).max() <= step
    np.testing.assert_array_equal(bias, floats.graph.initializers["b3"].const_value.numpy())
