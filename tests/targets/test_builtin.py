from __future__ import annotations

import pytest

from lowbit.ops.traits import OPS
from lowbit.targets.builtin import BUILTIN
from lowbit.transforms.rewrites import REWRITES


@pytest.mark.parametrize("name", BUILTIN)
def test_targets_speak_of_operators_and_rewrites_that_exist(name: str) -> None:
    target = BUILTIN[name]

    assert target.name == name
    assert target.description
    mentioned = {
        *target.operators,
        *target.shares,
        *(op for alignment in target.align for op in alignment.operators),
        *(op for pair in target.fuse for op in (*pair.producers, *pair.consumers)),
    }
    assert mentioned <= set(OPS)
    assert {*target.transforms, *target.arithmetic} <= set(REWRITES)


@pytest.mark.parametrize("name", BUILTIN)
def test_operators_that_share_are_not_aligned_as_well(name: str) -> None:
    target = BUILTIN[name]

    aligned = {op for alignment in target.align for op in alignment.operators}
    assert not aligned & set(target.shares) or target.name.startswith("quark")


def test_limits_come_with_powers_of_two() -> None:
    for target in BUILTIN.values():
        assert target.limits is None or target.power_of_two
