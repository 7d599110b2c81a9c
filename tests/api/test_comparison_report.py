"""The notes of a comparison say how to read its figures."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.api import comparison_report
from lowbit.evaluate.compare_models import Comparison
from lowbit.numerics.metrics import SignalNoise


def _found(exact: float, fused: float) -> Comparison:
    """Return a comparison with so much noise by exact arithmetic and by fused kernels."""
    figures = [{"y": SignalNoise(signal=1.0, noise=noise)} for noise in (exact, fused)]
    return Comparison(
        outputs=figures[0],
        slices=(),
        sliced={},
        fused=figures[1],
        exact=figures[0],
        samples=(),
        count=1,
    )


@pytest.mark.parametrize(
    ("fused", "saturates", "said"),
    [
        (1e-1, True, "20.0 dB worse; this processor's int8 kernels saturate"),
        (1e-1, False, "20.0 dB worse; openvino's fused kernels do not compute what the model says"),
        (1e-3, True, "are not affected"),
    ],
)
def test_kernels_that_make_a_model_worse_are_said(monkeypatch, fused, saturates, said) -> None:
    monkeypatch.setattr(comparison_report, "saturates_int8", lambda: saturates)

    (note,) = comparison_report._notes(_found(1e-3, fused), "openvino")

    assert said in note


def test_kernels_that_compute_the_same_need_no_note(monkeypatch) -> None:
    monkeypatch.setattr(comparison_report, "saturates_int8", lambda: False)

    assert comparison_report._notes(_found(1e-3, 1e-3), "onnxruntime") == ()


def test_a_report_names_preset_target_and_samples() -> None:
    model, feeds = small_cnn(), small_feeds(4)
    result = lowbit.quantize(model, data=feeds, preset="A8W8", allow_ruined=True, promote=False)

    report = lowbit.compare(model, result.model, feeds, budget="none")

    assert (report.preset, report.target) == ("A8W8", "ryzen-ai")
    assert report.verification_samples == 4
    assert report.size_after < report.size_before


def _sees_class_seven() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 12)).astype(np.float32)
    bias = 10 * np.eye(12, dtype=np.float32)[7]
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,12] y) {'
        "  z = Gemm(x, w, b)  y = Softmax(z) }"
    )
    tensors = (onnx.numpy_helper.from_array(a, n) for a, n in ((weight, "w"), (bias, "b")))
    model.graph.initializer.extend(tensors)
    return model


@pytest.mark.parametrize("data", ["feeds", "random"])
def test_inputs_of_which_the_float_model_makes_one_class_are_doubted(data) -> None:
    model, rng = _sees_class_seven(), np.random.default_rng(1)
    feeds = [{"x": rng.normal(size=(1, 4)).astype(np.float32)} for _ in range(20)]
    result = lowbit.quantize(model, data=feeds, preset="A8W8", allow_ruined=True, promote=False)

    report = lowbit.compare(model, result.model, feeds if data == "feeds" else data, budget="none")

    doubted = [doubt for doubt in report.doubts if "itself gives class 7 for nearly" in doubt]
    assert len(doubted) == (data == "feeds")
