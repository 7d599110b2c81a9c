"""Operators that quantize, under all their names."""

from __future__ import annotations

import pytest

from lowbit.ops.quantizing import (
    CONVERTERS,
    DEQUANTIZE,
    OLDER_NAMES,
    QUANTIZE,
    QUANTIZED,
    ROUND_BLOCKS,
)


def test_no_operator_is_of_two_kinds() -> None:
    assert not QUANTIZE & DEQUANTIZE
    assert not ROUND_BLOCKS & (QUANTIZE | DEQUANTIZE)


@pytest.mark.parametrize("kind", [QUANTIZE, DEQUANTIZE, ROUND_BLOCKS])
def test_an_operator_and_its_older_name_are_of_one_kind(kind: frozenset[str]) -> None:
    assert {OLDER_NAMES.get(name, name) for name in kind} <= kind
    assert kind & OLDER_NAMES.keys()


def test_what_keeps_its_meaning_in_float_is_not_quantized() -> None:
    assert CONVERTERS < QUANTIZED
    assert not QUANTIZED & {"ExtendedInstanceNormalization", "VitisLSTM", "Cast", "MatMul"}
