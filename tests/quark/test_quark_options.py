"""The table of extra options: complete, typed, and honest about what has no effect."""

from __future__ import annotations

import pathlib
import warnings

import numpy as np
import pytest

from lowbit.quark.errors import CompatibilityWarning, NotSupportedError, QuarkConfigError
from lowbit.quark.translate.options import OPTIONS, read_options

KEYS = (pathlib.Path(__file__).parent / "data/extra-options-0.13.txt").read_text().split()


def test_every_option_of_quark_has_a_row() -> None:
    # The first is in Quark's documentation only, the second in AMD's scripts.
    assert set(OPTIONS) == {*KEYS, "CalibOptimizeDisk", "NodesToExclude"}
    assert all(row.why for row in OPTIONS.values())


def test_a_misspelt_key_is_an_error_with_the_nearest() -> None:
    with pytest.raises(QuarkConfigError, match="'AlignConcatt'; did you mean 'AlignConcat'"):
        read_options({"AlignConcatt": True}, lenient=False)


def test_a_misspelt_key_is_a_warning_where_warnings_are_ignored() -> None:
    with pytest.warns(CompatibilityWarning, match="did you mean 'Percentile'"):
        options = read_options({"Percentil": 99.0, "CLESteps": 2}, lenient=True)

    assert (options.CLESteps, options.Percentile) == (2, None)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"CLESteps": "two"}, "CLESteps"),
        ({"AlignConcat": 3}, "AlignConcat"),
        ({"PercentileCandidates": 99.9}, "PercentileCandidates"),
        ({"LWPMetric": "mad"}, "LWPMetric"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(given: dict, where: str) -> None:
    with pytest.raises(QuarkConfigError, match=where):
        read_options(given, lenient=True)


def test_what_has_no_effect_is_said_with_the_reason() -> None:
    with pytest.warns(CompatibilityWarning, match="CalibWorkerNum=4 has no effect: lowbit measure"):
        read_options({"CalibWorkerNum": 4}, lenient=True)


def test_what_has_no_effect_may_be_of_any_type() -> None:
    with pytest.warns(CompatibilityWarning, match="CopyBiasInit='all' has no effect"):
        read_options({"CopySharedInit": True, "CopyBiasInit": "all"}, lenient=False)


@pytest.mark.parametrize("given", [{"SimplifyModel": True}, {"AlignEltwiseQuantType": True}])
def test_what_is_done_anyway_needs_no_word(given: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_options(given, lenient=False)


def test_what_cannot_be_done_is_an_error_unless_it_is_not_asked_for() -> None:
    read_options({"UserCustomOpLibPath": None, "UseGPTQ": False}, lenient=False)

    with pytest.raises(NotSupportedError, match=r"UserCustomOpLibPath='x\.so' is not supported"):
        read_options({"UserCustomOpLibPath": "x.so"}, lenient=True)


def test_options_are_not_changed_and_numbers_of_numpy_are_taken() -> None:
    given = {"Percentile": np.float64(99.5), "CLESteps": np.int64(3)}
    before = dict(given)

    options = read_options(given, lenient=False)

    assert given == before
    assert (options.Percentile, options.CLESteps) == (99.5, 3)
