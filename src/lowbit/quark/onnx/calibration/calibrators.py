"""Quark's calibrator objects, which lowbit does not have: it measures while models run."""

from __future__ import annotations

from typing import Any, NoReturn

from lowbit.quark.errors import NotSupportedError

_WAY_OUT = "quantize with ModelQuantizer, or collect statistics with lowbit.calibrate.collect"


def create_calibrator_power_of_two(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise: there are no calibrator objects."""
    del args, kwargs
    raise NotSupportedError(f"create_calibrator_power_of_two is not supported: {_WAY_OUT}")


def create_calibrator_float_scale(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise: there are no calibrator objects."""
    del args, kwargs
    raise NotSupportedError(f"create_calibrator_float_scale is not supported: {_WAY_OUT}")


def calibrate_model(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise: there is no calibration apart from a run."""
    del args, kwargs
    raise NotSupportedError(f"calibrate_model is not supported: {_WAY_OUT}")
