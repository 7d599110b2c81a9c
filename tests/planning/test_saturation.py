"""Which weights the plan keeps from saturating: those that meet 8-bit activations in pairs."""

from __future__ import annotations

import pytest
from helpers.saturating_models import saturating_network

import lowbit


def _pairs(target: str) -> dict[str, bool]:
    plan = lowbit.plan(saturating_network(), preset="U8S8_PERCHANNEL", target=target)
    return {row.name: bool(row.pairs) for row in plan.weights()}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_all_but_depthwise_weights_are_limited_where_kernels_saturate(target: str) -> None:
    found = _pairs(target)

    assert found == {"w1": True, "w2": False, "w3": True, "w4": True, "w5": True}


def test_no_weight_is_where_they_do_not() -> None:
    plan = lowbit.plan(saturating_network(), preset="A8W8")

    assert not any(row.pairs for row in plan.weights())


def test_no_weight_is_beside_activations_of_16_bits() -> None:
    plan = lowbit.plan(saturating_network(), preset="U16S8_PERCHANNEL")

    assert not any(row.pairs for row in plan.weights())
