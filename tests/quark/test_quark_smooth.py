"""SmoothQuant through Quark's API, against a model that AMD Quark 0.13 made the same way."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnxruntime as ort
from helpers.quark_cases import DATA
from helpers.quark_helpers import ListReader, quiet
from onnx import numpy_helper

from lowbit.quark.onnx import ModelQuantizer
from lowbit.quark.onnx.algorithm import smooth_transforms
from lowbit.quark.onnx.quantization.config import get_default_config


def _constants(path: pathlib.Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_factors_weights_and_scales_are_quarks(tmp_path: pathlib.Path) -> None:
    options = {**get_default_config("A8W8").extra_options, "SmoothAlpha": 0.6}
    config = quiet("A8W8", include_cle=False, include_sq=True, extra_options=options)
    feeds = [{"x": x} for x in np.load(DATA / "smooth_calib.npz")["x"]]

    made = tmp_path / "smooth.onnx"
    ModelQuantizer(config).quantize_model(
        str(DATA / "smooth_float.onnx"), str(made), ListReader(feeds)
    )

    ours, quarks = _constants(made), _constants(DATA / "smooth_a8w8_alpha0.6.onnx")
    assert ours.keys() == quarks.keys()
    assert "n_second_smooth_scale_quantized" in ours
    for name, wanted in quarks.items():
        if wanted.dtype == np.float32:  # other processors add up in another order
            np.testing.assert_allclose(ours[name], wanted, rtol=1e-5, err_msg=name)
        else:
            assert abs(ours[name].astype(int) - wanted.astype(int)).max() <= 1, name
            assert (ours[name] == wanted).mean() >= 0.99, name


def test_the_transformation_alone_computes_the_same() -> None:
    model = onnx.load(DATA / "smooth_float.onnx")
    feeds = [{"x": x} for x in np.load(DATA / "smooth_calib.npz")["x"]]

    smoothed = smooth_transforms(model, feeds, alpha=0.6)

    assert [node.op_type for node in smoothed.graph.node].count("Mul") == 4
    one, other = (ort.InferenceSession(m.SerializeToString()) for m in (model, smoothed))
    for feed in feeds:
        want, got = one.run(["y"], feed)[0], other.run(["y"], feed)[0]
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * abs(want).max())
