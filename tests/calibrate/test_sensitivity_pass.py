from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from lowbit.calibrate import sensitivity_pass
from lowbit.calibrate.sensitivity import bin_edges
from lowbit.calibrate.sensitivity_pass import collect_sensitivity
from lowbit.graph import io
from lowbit.graph.onnx_passes import infer_types
from lowbit.ops.gradients import OutputPart


def test_it_tells_the_noise_that_errors_make_at_the_outputs() -> None:
    """Of a linear network, whose outputs' noise is known: independent errors, and a constant one."""
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[1,12] x) => (float[1,9] y) { t = Relu(x) y = MatMul(t, w) }'
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 1, (12, 9)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    loaded = io.load(model)
    infer_types(loaded)
    x = np.abs(rng.normal(0, 1, (1, 12))).astype(np.float32)

    sensitivity = collect_sensitivity(loaded, ["t"], [OutputPart("y")], [{"x": x}] * 4000)["t"]

    signal = np.square(x @ weight, dtype=np.float64).sum()
    np.testing.assert_allclose(
        sensitivity.squares.sum() / 4000, np.square(weight).sum() / signal, rtol=0.05
    )
    at = 250
    cut = np.maximum(x - bin_edges()[at], 0) @ weight
    np.testing.assert_allclose(
        sensitivity.clipping[0, at] / 4000, np.square(cut).sum() / signal, rtol=0.05
    )
    assert not sensitivity.clipping[1].any()


def test_images_of_any_size_are_measured_at_that_of_the_first() -> None:
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[N,2,H,W] x) => (float[N,2,A,B] y) { t = Relu(x) y = Conv<strides = [2, 2]>(t, w) }'
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).normal(0, 1, (2, 2, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    loaded = io.load(model)
    infer_types(loaded)
    sizes = [(9, 7), (5, 5), (9, 7)]
    feeds = [
        {"x": np.random.default_rng(0).normal(0, 1, (1, 2, *size)).astype(np.float32)}
        for size in sizes
    ]

    some = collect_sensitivity(loaded, ["t"], [OutputPart("y")], feeds)
    alike = collect_sensitivity(loaded, ["t"], [OutputPart("y")], [feeds[0], feeds[2]])

    np.testing.assert_array_equal(some["t"].squares, alike["t"].squares)


def test_very_large_maps_are_left_alone(monkeypatch) -> None:
    """Also those whose size only the samples tell."""
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[N,2,H,W] x) => (float[N,2,H,W] y) { t = Relu(x) y = Neg(t) }'
    model = io.load(onnx.parser.parse_model(text))
    infer_types(model)
    feeds = [{"x": np.ones((1, 2, 30, 30), np.float32)}]
    assert set(collect_sensitivity(model, ["t"], [OutputPart("y")], feeds)) == {"t"}

    monkeypatch.setattr(sensitivity_pass, "_LARGE", 3000)

    assert collect_sensitivity(model, ["t"], [OutputPart("y")], feeds) == {}
