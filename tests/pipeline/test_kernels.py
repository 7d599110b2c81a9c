"""Whole runs on kernels that saturate: what is stored is safe, and fused kernels compute the same."""

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.saturating_models import saturating_network
from helpers.staged import random_feeds

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaQuant, AdaRound, Gptq, LayerReconstruction, Refinement
from lowbit.graph.profiling import saturates_int8
from lowbit.pipeline.kernels import slow_kernels

_REFINEMENTS = (
    LayerReconstruction(),
    Gptq(),
    AdaRound(num_iterations=30),
    AdaQuant(num_iterations=30, learning_rate=0.1),
)


def _run(model: lowbit.Result, feed: dict[str, np.ndarray], *, exact: bool) -> np.ndarray:
    options = ort.SessionOptions()
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(
        model.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feed)[0]


@pytest.mark.parametrize("refinement", _REFINEMENTS, ids=lambda r: type(r).__name__)
def test_refined_weights_are_safe_and_every_session_gives_the_same(refinement: Refinement) -> None:
    model = saturating_network()
    feeds = random_feeds(model, 8)
    plain = find_preset("U8S8_PERCHANNEL")
    config = msgspec.structs.replace(
        plain,
        refinement=refinement,
        equalization=None,
        smooth_quant=None,
        keep_only_if_better=False,
    )

    result = lowbit.quantize(model, data=feeds, config=config, allow_ruined=True, promote=False)

    saturation = result.report.saturation
    assert saturation is not None
    assert saturation.saturating == ()
    assert "safe on x86 without VNNI" in saturation.describe()
    for feed in feeds[:3]:
        np.testing.assert_array_equal(
            _run(result, feed, exact=False), _run(result, feed, exact=True)
        )


def test_the_verdict_counts_what_fused_kernels_make_of_a_model() -> None:
    if not saturates_int8():
        pytest.skip("the kernels of this processor do not saturate")
    model = saturating_network()
    # Positive and equal inputs, with which pairs of one sign reach the limit.
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.uniform(2, 3, (1, 3, 12, 12)).astype(np.float32)} for _ in range(6)]
    base = find_preset("U8S8_PERCHANNEL")
    weight = msgspec.structs.replace(base.weight, saturation_free=False)
    verdicts = {
        config: lowbit.quantize(
            model,
            data=feeds,
            config=msgspec.structs.replace(
                base, weight=spec, equalization=None, smooth_quant=None, refinement=None
            ),
            allow_ruined=True,
            promote=False,
        ).report
        for config, spec in (("safe", base.weight), ("full", weight))
    }

    assert not verdicts["safe"].verdict.fused
    assert verdicts["full"].saturation.saturating
    assert verdicts["full"].verdict.fused
    assert "fused kernels" in verdicts["full"].verdict.describe()


@pytest.mark.parametrize(
    ("preset", "slow"),
    [("A8W8", True), ("XINT8", True), ("U16S8", True), ("U8S8", False), ("W8", False)],
)
def test_a_slow_preset_says_so_and_names_the_fast_one(preset: str, *, slow: bool) -> None:
    model = saturating_network()

    said = slow_kernels(lowbit.plan(model, preset=preset), ir.from_proto(model).graph)

    assert said.startswith("slow on x86 CPUs") is slow
    assert ("U8S8_PERCHANNEL is fast" in said) is slow


@pytest.mark.parametrize(("preset", "slow"), [("A8W8", False), ("A16W8", True)])
def test_products_with_a_matrix_are_fast_in_either_8_bit_format(preset: str, *, slow: bool) -> None:
    graph = "g (float[2,8] x) => (float[2,8] y) { a = MatMul(x, v)  b = Erf(a)  y = MatMul(b, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    weight = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(weight, name) for name in "vw")

    report = lowbit.quantize(
        model, data=random_feeds(model, 4), preset=preset, allow_ruined=True, promote=False
    ).report

    assert bool(report.speed) is slow
