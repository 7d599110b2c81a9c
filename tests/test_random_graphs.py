"""Properties that hold of every graph: each stage keeps the float function, quantized models run."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.random_graphs import graphs
from hypothesis import HealthCheck, given, settings

import lowbit
from lowbit.config.presets import find_preset
from lowbit.graph import io

Feed = dict[str, np.ndarray]


def outputs(model: onnx.ModelProto | ir.Model, feed: Feed, *, fused: bool = False) -> list:
    proto = io.to_proto(model) if isinstance(model, ir.Model) else model
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, feed)


@pytest.mark.slow
@settings(
    derandomize=True,
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(graphs())
def test_every_stage_keeps_the_function_and_the_quantized_model_is_near(
    drawn: tuple[onnx.ModelProto, list[Feed]],
) -> None:
    model, feeds = drawn
    config = msgspec.structs.replace(
        find_preset("A16W8"), keep_only_if_better=False, refinement=None, head="int8"
    )

    result = lowbit.quantize(model, data=feeds, config=config)

    state = result.state
    for feed in feeds:
        want = outputs(model, feed)
        for stage in (state.normalized, state.float_model, state.adapted):
            for a, b in zip(want, outputs(stage, feed), strict=True):
                scale = float(np.abs(a).max(initial=0)) + 1e-6
                np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4 * scale)
        for a, b in zip(want, outputs(result.model, feed, fused=True), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
    for score in result.report.outputs:
        assert score.sqnr_db > 20, score


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["A8W8", "XINT8", "U8S8_PERCHANNEL", "BF16", "MXINT8"])
@settings(
    derandomize=True,
    max_examples=8,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(drawn=graphs())
def test_other_presets_give_models_that_run(
    preset: str, drawn: tuple[onnx.ModelProto, list[Feed]]
) -> None:
    model, feeds = drawn

    result = lowbit.quantize(model, data=feeds, preset=preset)

    for a, b in zip(outputs(model, feeds[0]), outputs(result.model, feeds[0]), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.isfinite(b).all()
