import pytest
from helpers.saturating_models import saturating_network

import lowbit
from lowbit.pipeline.speed import slow_kernels


@pytest.mark.parametrize(
    ("preset", "slow"),
    [("A8W8", True), ("XINT8", True), ("U16S8", True), ("U8S8", False), ("W8", False)],
)
def test_a_slow_preset_says_so_and_names_the_fast_one(preset: str, *, slow: bool) -> None:
    said = slow_kernels(lowbit.plan(saturating_network(), preset=preset))

    assert said.startswith("slow on x86 CPUs") is slow
    assert ("take U8S8_PERCHANNEL" in said) is slow
