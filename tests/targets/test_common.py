"""What built-in targets share names operators that there are."""

from __future__ import annotations

from lowbit.ops.activations import FUSED_ACTIVATIONS
from lowbit.ops.linear import LINEAR
from lowbit.ops.traits import OPERATORS
from lowbit.targets.common import COMPUTING, INTEGERS, PADDED_POOLS, POOLS, WITH_ACTIVATION


def test_every_operator_is_in_the_table() -> None:
    pairs = (PADDED_POOLS, WITH_ACTIVATION)
    named = {name for pair in pairs for name in (*pair.producers, *pair.consumers)}

    assert named <= {*OPERATORS, "Pad"}
    assert set(COMPUTING) >= {*LINEAR, *POOLS}
    assert set(WITH_ACTIVATION.consumers) == set(FUSED_ACTIVATIONS)


def test_integers_are_of_8_and_16_bits() -> None:
    assert sorted((f.bits, f.signed) for f in INTEGERS) == [
        (8, False),
        (8, True),
        (16, False),
        (16, True),
    ]
