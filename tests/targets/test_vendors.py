"""What published tables demand, in models that were written for the runtimes of other vendors."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from helpers.saturating_models import saturating_network
from helpers.staged import random_feeds
from onnx import numpy_helper

import lowbit
from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError
from lowbit.targets.vendors import VENDORS

_PRESETS = {
    "qnn": "U8S8_PERCHANNEL",
    "tensorrt": "A8W8",
    "coreml": "A8W8",
    "vitis-ai": "XINT8",
}


def _quantized(target: str) -> onnx.ModelProto:
    model = saturating_network()
    config = msgspec.structs.replace(
        find_preset(_PRESETS[target]), refinement=None, keep_only_if_better=False, equalization=None
    )
    return lowbit.quantize(
        model,
        data=random_feeds(model),
        config=config,
        target=target,
        allow_ruined=True,
        promote=False,
    ).model


def test_each_names_its_preset() -> None:
    assert {t.name for t in VENDORS} == set(_PRESETS)
    for target in VENDORS:
        assert f"({_PRESETS[target.name]})" in target.description


@pytest.mark.parametrize("target", ["tensorrt", "coreml"])
def test_zero_points_are_zero_and_biases_in_float(target: str) -> None:
    model = _quantized(target)

    constants = {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}
    zeros = [constants[n.input[2]] for n in model.graph.node if n.op_type == "QuantizeLinear"]
    assert zeros
    assert not any(z.any() for z in zeros)
    assert not any(c.dtype == np.int32 for c in constants.values())
    with pytest.raises(ConfigError, match="zero points of zero"):
        lowbit.plan(saturating_network(), preset="S8S8", target=target)


def test_scales_for_the_dpu_are_powers_of_two() -> None:
    model = _quantized("vitis-ai")

    constants = {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}
    pairs = [n for n in model.graph.node if n.op_type == "DequantizeLinear"]
    scales = np.concatenate([constants[n.input[1]].ravel() for n in pairs])
    assert (np.log2(scales) % 1 == 0).all()


def test_on_qualcomms_npu_everything_is_quantized() -> None:
    plan = lowbit.plan(saturating_network(), preset="U8S8_PERCHANNEL", target="qnn")

    assert not plan.float_nodes
    assert "y" in plan.by_name()
    assert {t.spec.format_name for t in plan.activations()} == {"uint8"}
