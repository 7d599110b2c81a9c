from __future__ import annotations

import msgspec
from helpers.wide_models import wide_feeds, wide_network

import lowbit
from lowbit.config.methods import MinMax
from lowbit.config.presets import find_preset
from lowbit.ops.gradients import OutputPart
from lowbit.pipeline.sensitivity import measure_sensitivity, mse_tensors


def _state(**changes: object) -> lowbit.Result:
    config = msgspec.structs.replace(
        find_preset("A8W8"),
        refinement=None,
        sensitivity=None,
        equalization=None,
        centering=None,
        **changes,
    )
    return lowbit.quantize(wide_network(), data=wide_feeds(8), config=config, promote=False).state


def test_tensors_with_a_range_or_another_method_are_left_alone() -> None:
    override = lowbit.TensorOverride(tensor="b", range=(0.0, 4.0))
    state = _state(tensors=(override,))
    other = msgspec.structs.replace(
        find_preset("A8W8").with_method(MinMax()), refinement=None, equalization=None
    )

    assert mse_tensors(_state()) == ["x", "b", "d", "y"]
    assert mse_tensors(state) == ["x", "d", "y"]
    made = lowbit.quantize(wide_network(), data=wide_feeds(8), config=other, promote=False)
    assert mse_tensors(made.state) == []


def test_the_sensitivity_becomes_part_of_the_statistics() -> None:
    state = _state()

    found = measure_sensitivity(state, wide_feeds(4), [OutputPart("y")])

    assert {name for name, row in found.stats.tensors.items() if row.sensitivity is not None} == {
        *"xbdy"
    }
    assert all(row.sensitivity is None for row in state.stats.tensors.values())
