"""Scales of the form m / 2**n: the nearest of all, and what AMD Quark 0.13 stores."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.quark_cases import DATA, samples
from helpers.quark_helpers import ListReader, quiet
from onnx import numpy_helper

from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.extension.int16_scale import nearest_int16_scale
from lowbit.quark.onnx import (
    CalibMethod,
    Int8Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    ScaleType,
)


@pytest.mark.parametrize("scale", [3e-7, 1e-5, 0.0779565, 0.5, 0.9999, 1.0437, 7.7, 20000.3])
def test_the_scale_is_the_nearest_of_all(scale: float) -> None:
    wanted = float(np.float32(scale))
    tried = [
        m / 2**n
        for n in range(17)
        for m in (int(wanted * 2**n), int(wanted * 2**n) + 1)
        if 1 <= m <= 2**15 - 1
    ]

    assert float(nearest_int16_scale(wanted)) == min(tried, key=lambda s: abs(s - wanted))


def _scales(config: object) -> dict[str, float]:
    feeds = [dict(feed) for feed in samples("calib.npz")]
    model = ModelQuantizer(config).quantize_model(
        onnx.load(DATA / "float.onnx"), None, ListReader(feeds)
    )
    constants = {t.name: t for t in model.graph.initializer}
    return {
        node.input[0]: float(numpy_helper.to_array(constants[node.input[1]]).item())
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }


def test_the_scales_of_activations_are_quarks() -> None:
    found = _scales(quiet("INT8_CNN_DEFAULT", {"Int16Scale": True}, include_cle=False))

    # In units of 2**-16, as Quark 0.13 stores them.
    expected = {
        "input": 5109, "relu1_out": 13468, "clip1_out": 1542, "bn3_out": 9490, "add1_out": 21179,
        "relu2_out": 27888, "relu3_out": 42900, "relu4_out": 68424, "gap_out": 18966,
    }  # fmt: skip
    assert {name: found[name] * 2**16 for name in expected} == expected


def test_the_newer_api_asks_for_them_by_a_scale_type() -> None:
    spec = Int8Spec(scale_type=ScaleType.Int16, calibration_method=CalibMethod.MinMax)
    config = QConfig(QLayerConfig(input_tensors=spec, weight=spec))
    config.extra_options["PrintSummary"] = False

    found = _scales(config)

    assert all(scale == float(nearest_int16_scale(scale)) for scale in found.values())


def test_powers_of_two_are_not_such_scales() -> None:
    with pytest.raises(QuarkConfigError, match="switch enable_npu_cnn off"):
        _scales(quiet("XINT8", {"Int16Scale": True}))
