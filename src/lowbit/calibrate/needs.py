"""What the methods of calibration must know of a tensor."""

from __future__ import annotations

import dataclasses
from typing import Literal

from lowbit.calibrate.growing import Span
from lowbit.config.methods import (
    Distribution,
    Entropy,
    LayerwisePercentile,
    Method,
    MinMax,
    MinMse,
    NonOverflow,
    OutputMse,
    Percentile,
)
from lowbit.errors import CalibrationError, ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What must be measured of a tensor; its ``floor`` need not be."""

    histogram: bool = False
    growing: tuple[int, Span] | None = None
    average: float | Literal["mean"] | None = None
    channel_axis: int | None = None
    variances: bool = False
    floor: float | None = None

    @property
    def ordered(self) -> bool:
        """Whether the result depends on the order of samples."""
        return self.growing is not None or self.average is not None

    @property
    def pools(self) -> bool:
        """Whether the largest value and the mean of each channel tell all."""
        more = self.histogram or self.ordered or self.variances
        return self.floor is not None and not more and self.channel_axis in (None, 1)

    def __or__(self, other: Need) -> Need:
        """Return the need of both; of two kinds of growing histogram only one can be had."""
        if self.growing and other.growing and self.growing != other.growing:
            raise CalibrationError(
                f"one tensor is asked for two growing histograms, {self.growing} and "
                f"{other.growing}; give the tensors that share it the same method"
            )
        return Need(
            histogram=self.histogram or other.histogram,
            growing=self.growing or other.growing,
            average=other.average if self.average is None else self.average,
            channel_axis=other.channel_axis if self.channel_axis is None else self.channel_axis,
            variances=self.variances or other.variances,
        )


def need_of(method: Method) -> Need:
    """Return what a method must know of a tensor."""
    match method:
        case MinMax(moving_average=constant):
            return Need(average=constant)
        case NonOverflow():
            return Need()
        case Percentile(histogram="growing", bins=bins, symmetric_range=absolute):
            return Need(growing=(bins, "absolute" if absolute else "symmetric"))
        case LayerwisePercentile(histogram="growing", bins=bins):
            return Need(growing=(bins, "absolute"))
        case Entropy(histogram="growing", bins=bins):
            return Need(growing=(bins, "symmetric"))
        case MinMse(histogram="growing", bins=bins):
            return Need(growing=(bins, "signed"))
        case Percentile() | LayerwisePercentile() | Entropy() | Distribution() | MinMse():
            return Need(histogram=True)
        case OutputMse():
            raise ConfigError("output is a method for weights, not for activations; take mse")
    raise TypeError(f"unknown method {method!r}")
