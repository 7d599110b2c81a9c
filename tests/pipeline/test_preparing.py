"""A Clip that the quantizer's range implies is written as the Relu that devices have."""

from __future__ import annotations

import msgspec
import pytest
from helpers.small_models import small_cnn

from lowbit.api.quantize import planned_state
from lowbit.config.presets import find_preset
from lowbit.config.transforms import Rescaling


def _operators(limits: tuple[float, float] | None, **changes: object) -> list[str]:
    ranges = {} if limits is None else {"r1": limits}
    rescaling = Rescaling(factors={"r1": 1.5}, ranges=ranges)
    config = msgspec.structs.replace(find_preset("XINT8"), rescaling=rescaling, **changes)
    state = planned_state(small_cnn(), config=config)
    assert "Clip" in [node.op_type for node in state.calibrated_model.graph]
    return [node.op_type for node in state.adapted.graph]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((-8.0, 7.9375), "Relu"), ((-16.0, 15.875), "Clip"), (None, "Clip")],
)
def test_a_relu_stands_for_a_clip_that_the_range_ends_before(limits, expected: str) -> None:
    found = _operators(limits)

    # The bound of 6 is 9 once its tensor is multiplied by 1.5.
    assert expected in found
    assert ("Clip" in found) is (expected == "Clip")


def test_a_clip_in_float_stays() -> None:
    assert "Clip" in _operators((-8.0, 7.9375), exclude=("relu1", "conv1", "conv2", "add1"))
