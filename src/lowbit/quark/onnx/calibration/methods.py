"""Quark's names of calibration methods beyond onnxruntime's."""

from __future__ import annotations

import enum


class PowerOfTwoMethod(enum.Enum):
    """Methods that give power-of-two scales."""

    NonOverflow = 0
    MinMSE = 1


class Int16Method(enum.Enum):
    """Methods whose scales are 16-bit integers over a power of two."""

    MinMax = 0


class LayerWiseMethod(enum.Enum):
    """Methods that choose among percentiles for each tensor."""

    LayerWisePercentile = 0


class ExtendedCalibrationMethod(enum.Enum):
    """Methods for weights with float scales."""

    MinMSE = 0
