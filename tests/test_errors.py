"""The kinds of errors, and the nearest known name that a message offers."""

from __future__ import annotations

import inspect

import pytest

import lowbit
from lowbit import errors
from lowbit.errors import did_you_mean

PRESETS = ("XINT8", "A8W8", "A16W8", "U8S8", "BF16")


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("A8W9", PRESETS, "; did you mean 'A8W8'?"),
        ("A8W8_", PRESETS, "; did you mean 'A8W8' or 'A16W8'?"),
        ("xint8", PRESETS, "; did you mean 'XINT8'?"),
        ("conv1", ("Conv1", "Relu"), "; did you mean 'Conv1'?"),
        ("zzz", PRESETS, ""),
        ("", PRESETS, "; did you mean 'XINT8' or 'A8W8' or 'A16W8'?"),
        ("A8W8", (), ""),
    ],
)
def test_the_nearest_names_are_offered_as_they_are_spelled(word, known, expected) -> None:
    assert did_you_mean(word, known) == expected


def test_the_nearest_comes_first_and_no_more_than_asked_for() -> None:
    known = ("conv10", "conv1", "conv2", "conv3")

    assert did_you_mean("conv1_", known, 1) == "; did you mean 'conv1'?"
    assert did_you_mean("conv1_", known).count("'") == 2 * 3


@pytest.mark.parametrize("word", ["NodesToSkip", "MatMulToGemm", "DumpTensors", "IncludeCLE"])
def test_a_long_name_that_only_shares_letters_is_not_offered(word: str) -> None:
    known = (
        "SaveAndRestore",
        "NodesToQuantize",
        "MatMulConstBOnly",
        "TensorsRangeFile",
        "CLESteps",
    )

    assert did_you_mean(word, known) == ""
    assert did_you_mean("NodeToQuantise", known) == "; did you mean 'NodesToQuantize'?"


def test_a_long_name_that_holds_the_word_is_offered_where_none_is_near() -> None:
    known = ("/model.22/cv3.2/cv3.2.2/Conv_output_0", "images")

    assert did_you_mean("cv3", known) == "; did you mean '/model.22/cv3.2/cv3.2.2/Conv_output_0'?"


def test_who_catches_the_base_catches_every_kind_and_all_but_gates_are_public() -> None:
    kinds = {
        name: kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }

    assert all(issubclass(kind, lowbit.LowbitError) for kind in kinds.values())
    assert {name for name in kinds if name not in lowbit.__all__} == {"GateError"}


def test_a_failed_gate_is_a_failed_verification() -> None:
    with pytest.raises(lowbit.VerificationError):
        raise errors.GateError("sqnr<20")
