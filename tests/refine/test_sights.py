from __future__ import annotations

import types

import pytest

from lowbit.refine.sights import enough_positions


@pytest.mark.parametrize("depth", [9, 27, 64, 576, 2304, 4608])
@pytest.mark.parametrize("samples", [28, 64])
def test_equations_outnumber_the_unknowns(depth: int, samples: int) -> None:
    layer = types.SimpleNamespace(depth=depth)

    assert enough_positions(layer, 64, samples) * samples > 3 * depth


@pytest.mark.parametrize("depth", [9, 576, 2304])
def test_what_is_looked_at_does_not_grow_with_samples(depth: int) -> None:
    layer = types.SimpleNamespace(depth=depth)

    few, many = (enough_positions(layer, 64, n) * n for n in (64, 2048))

    assert many <= few + 2048  # rounded up for each sample
