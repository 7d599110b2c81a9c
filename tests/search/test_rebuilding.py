"""A model built again is the one that is built from nothing."""

from __future__ import annotations

import msgspec
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized

from lowbit.config.methods import Entropy, MinMax
from lowbit.config.presets import find_preset
from lowbit.graph import io
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
