"""A model built again is the one that is built from nothing."""

from __future__ import annotations

import dataclasses

import msgspec
import onnx.parser
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import planned, quantized

from lowbit.config.methods import Entropy, MinMax
from lowbit.config.presets import find_preset
from lowbit.config.specs import TensorOverride
from lowbit.graph import io
from lowbit.numerics.formats import IntegerFormat
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Clock, Pipeline, ignore_progress
from lowbit.search.rebuilding import rebuilt


def _plain(preset: str):
    return msgspec.structs.replace(
        find_preset(preset), equalization=None, smooth_quant=None, bias_correction=False
    )


def test_another_method_needs_no_other_pass() -> None:
    feeds, config = small_feeds(4, 8), _plain("A8W8")
    other = config.with_method(MinMax())
    pipeline = Pipeline(Clock(ignore_progress))

    found = rebuilt(pipeline, quantized(small_cnn(8), config, feeds), other)

    want = quantized(small_cnn(8), other, feeds)
    assert io.to_proto(found.emitted.model) == io.to_proto(want.emitted.model)
    assert "calibrate" not in pipeline.clock.seconds


def test_formats_follow_the_configuration() -> None:
    state = quantized(small_cnn(8), _plain("A8W8"), small_feeds(4, 8))

    found = rebuilt(Pipeline(Clock(ignore_progress)), state, state.config.with_method(Entropy()))

    assert {row.spec.calibration for row in found.plan.activations()} == {Entropy()}


def test_what_shares_a_scale_with_a_tensor_that_reads_histograms_needs_one() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1,3,8,8] input) => (float[1,2,8,8] y)
        <float[3,3,1,1] w = {1, 2, -1, 3, 1, 0, -2, 1, 1},
         float[2,6,1,1] v = {1, 2, -1, 3, 1, 0, -2, 1, 1, 2, 1, 1}> {
          m = Conv<kernel_shape=[1,1]>(input, w)
          a = Relu(m)
          b = MaxPool<kernel_shape=[1,1]>(a)
          n = Conv<kernel_shape=[1,1]>(b, w)
          c = Concat<axis=1>(a, n)
          y = Conv<kernel_shape=[1,1]>(c, v)
        }""")
    config = _plain("A8W8")
    state = quantized(model, config, small_feeds(2, 8))
    wide = msgspec.structs.replace(config.activation, format=IntegerFormat.INT16, method=MinMax())
    override = TensorOverride(tensor="n", spec=wide)
    other = planned(model, msgspec.structs.replace(config, tensors=(override,)))
    assert any({"n", "c"} <= {*group.inputs, *group.outputs} for group in other.plan.groups)

    stripped = dict(state.stats.tensors)
    stripped["n"] = dataclasses.replace(stripped["n"], counts=None)

    assert not stages.lacks_statistics(other.plan, state.stats)
    assert stages.lacks_statistics(other.plan, dataclasses.replace(state.stats, tensors=stripped))
