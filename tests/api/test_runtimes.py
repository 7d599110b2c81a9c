"""Every preset that says so runs in onnxruntime and in OpenVINO, and gives what it gives exactly."""

import functools

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from helpers.saturating_models import saturating_network
from helpers.staged import random_feeds

import lowbit
from lowbit.config.presets import PRESETS
from lowbit.evaluate.benchmark import benchmark
from lowbit.graph.openvino import openvino_session
from lowbit.graph.session import Array, session

_CLAIMED = tuple(
    name
    for name, preset in PRESETS.items()
    if preset.config.target.startswith("onnxruntime") or preset.config.casts
)
# What both runtimes compute otherwise than exactly: 16-bit floats, accuracy level of 4-bit products.
_LEAST_DB = {"BF16_CAST": 30.0}


@functools.cache
def _quantized(preset: str) -> ir.Model:
    model = saturating_network()
    config = msgspec.structs.replace(
        PRESETS[preset].config,
        refinement=None,
        keep_only_if_better=False,
        equalization=None,
        smooth_quant=None,
    )
    return lowbit.quantize(
        model, data=random_feeds(model), config=config, allow_ruined=True, promote=False, verify=1
    ).quantized


def _output(preset: str, runtime: str) -> Array:
    (feed,) = random_feeds(saturating_network(), 1, seed=9)
    model = _quantized(preset)
    if runtime == "openvino":
        with openvino_session(model, threads=1) as there:
            return there.run(["y"], feed)[0]
    with session(model, threads=1, optimize="none" if runtime == "exact" else "all") as here:
        return np.array(here.run(["y"], feed)[0])


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("preset", _CLAIMED)
def test_presets_run_where_they_say(preset: str, runtime: str) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino", reason="lowbit[openvino] is not installed")

    want, found = _output(preset, "exact"), _output(preset, runtime)

    noise = float(np.square(want - found).sum())
    least = _LEAST_DB.get(preset, 40.0)
    assert noise <= 10 ** (-least / 10) * float(np.square(want).sum())


def test_compare_and_benchmark_run_in_openvino() -> None:
    pytest.importorskip("openvino", reason="lowbit[openvino] is not installed")
    model = saturating_network()
    feeds = random_feeds(model, 4)
    other = _quantized("U8S8_PERCHANNEL")

    report = lowbit.compare(model, other, feeds, budget="none", runtime="openvino")
    timings = benchmark({"int8": other}, feeds[0], runs=3, threads=1, runtime="openvino")

    assert report.runtime == "openvino"
    assert report.fused[0].sqnr_db == pytest.approx(report.outputs[0].sqnr_db, abs=0.1)
    assert timings[0].runs == 3
    with pytest.raises(lowbit.errors.ConfigError, match="provider"):
        benchmark({"int8": other}, feeds[0], provider="X", runtime="openvino")
