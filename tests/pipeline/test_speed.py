import pytest
from helpers.saturating_models import saturating_network

import lowbit
from lowbit.pipeline.speed import slow_kernels


@pytest.mark.parametrize(
    ("preset", "slow"),
    [("A8W8", "int8"), ("XINT8", "int8"), ("U16S8", "uint16"), ("U8S8", ""), ("W8", "")],
)
def test_a_slow_preset_says_so_and_names_the_fast_one(preset: str, slow: str) -> None:
    said = slow_kernels(lowbit.plan(saturating_network(), preset=preset))

    assert said == "" if not slow else f"not {slow};" in said
    assert not slow or "U8S8_PERCHANNEL" in said
