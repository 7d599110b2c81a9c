"""Calibrator objects: the ranges that AMD Quark 0.13 writes down for the same model and data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.quark_cases import DATA, samples
from helpers.quark_helpers import ListReader

from lowbit.quark.onnx import (
    CalibrationMethod,
    PowerOfTwoMethod,
    create_calibrator_float_scale,
    create_calibrator_power_of_two,
)

MODEL, TYPES = str(DATA / "float.onnx"), ["Conv", "Gemm", "Add"]
_POWERS = create_calibrator_power_of_two
# From Quark 0.13.
EXPECTED = {
    CalibrationMethod.MinMax: {"clip1_out": (0, 6), "dwconv_out": (-81.24659, 72.77572)},
    CalibrationMethod.Percentile: {
        "clip1_out": (0, 5.9970703),
        "dwconv_out": (-81.236145, 72.77572),
    },
    PowerOfTwoMethod.MinMSE: {"clip1_out": (-7.9375, 7.9375), "pwconv_out": (-31.75, 31.75)},
    PowerOfTwoMethod.NonOverflow: {"clip1_out": (-6, 6), "dwconv_out": (-81.24659, 81.24659)},
}


@pytest.mark.parametrize("method", EXPECTED, ids=str)
def test_ranges_are_quarks(method: Any) -> None:
    make = _POWERS if isinstance(method, PowerOfTwoMethod) else create_calibrator_float_scale
    calibrator = make(MODEL, TYPES, calibrate_method=method)

    calibrator.collect_data(ListReader([dict(feed) for feed in samples("calib.npz")]))
    found = dict(calibrator.compute_data().items())

    assert len(found) == 16
    for name, limits in EXPECTED[method].items():
        np.testing.assert_allclose(found[name].range_value, limits, rtol=1e-6)


def test_nothing_observed_is_an_error() -> None:
    calibrator = create_calibrator_float_scale(MODEL, TYPES)

    with pytest.raises(ValueError, match="call collect_data first"):
        calibrator.compute_data()
    with pytest.raises(ValueError, match="gave no sample"):
        calibrator.collect_data(ListReader([]))


def test_a_calibrator_takes_options_in_its_own_words() -> None:
    calibrator = create_calibrator_float_scale(
        MODEL,
        TYPES,
        calibrate_method=CalibrationMethod.Percentile,
        extra_options={"percentile": 50},
    )

    calibrator.collect_data(ListReader([dict(feed) for feed in samples("calib.npz")]))

    low, high = dict(calibrator.compute_data().items())["dwconv_out"].range_value
    assert -81 < low < high < 72
