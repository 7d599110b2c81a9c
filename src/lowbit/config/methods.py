"""How a range is chosen from statistics. Values only; ``lowbit.scales`` knows the mathematics.

``histogram`` names the kind of statistics a method reads:

* ``log``: counts by the leading bits of the float. Needs no range first, merges exactly and does
  not depend on the order or the batching of samples. The default.
* ``growing``: equal bins over the first sample's range, continued outwards when a later sample is
  larger. It is what onnxruntime and AMD Quark use; it depends on the order of samples.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

HistogramKind: TypeAlias = Literal["log", "growing"]


class _Method(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common settings of the value types below."""


class MinMax(_Method, frozen=True, kw_only=True, tag="minmax"):
    """The whole observed range.

    ``moving_average`` (0..1): follow each sample's range by this fraction instead; ``mean``: the
    mean of the samples' ranges.
    """

    moving_average: float | Literal["mean"] | None = None


class NonOverflow(_Method, frozen=True, kw_only=True, tag="nonoverflow"):
    """The power-of-two scale that holds the whole observed range.

    ``nearest`` rounds the exponent to the nearest instead of up; it clips by up to the square
    root of two, and is what AMD Quark does under this name.
    """

    nearest: bool = False


class Percentile(_Method, frozen=True, kw_only=True, tag="percentile"):
    """Leave out the largest values, so that ``percentile`` percent remain in range."""

    percentile: float = 99.999
    histogram: HistogramKind = "log"
    bins: int = 2048
    symmetric_range: bool = False


class LayerwisePercentile(_Method, frozen=True, kw_only=True, tag="layerwise"):
    """The percentile among ``candidates`` with the least quantization error on this tensor."""

    candidates: tuple[float, ...] = (99.99, 99.999, 99.99999)
    metric: Literal["mae", "mse"] = "mae"
    histogram: HistogramKind = "log"
    bins: int = 2048


class Entropy(_Method, frozen=True, kw_only=True, tag="entropy"):
    """The threshold whose quantized distribution diverges least (Kullback-Leibler)."""

    histogram: HistogramKind = "log"
    bins: int = 2048
    levels: int = 128


class Distribution(_Method, frozen=True, kw_only=True, tag="distribution"):
    """Range from the moments: ``deviations`` standard deviations around the mean."""

    deviations: float = 6.0


class MinMse(_Method, frozen=True, kw_only=True, tag="mse"):
    """The scale with the least mean squared quantization error.

    With ``growing`` histograms and power-of-two scales: AMD Quark's search, five candidates
    around the range's own scale, errors taken at bin centres.
    """

    histogram: HistogramKind = "log"
    bins: int = 2048


class OutputMse(_Method, frozen=True, kw_only=True, tag="output"):
    """For weights: the scale with the least squared error of the layer's output.

    Both what errors add to the output's variance and how far together they shift its mean is
    reckoned from the means and variances of the input's channels, which calibration measures. A
    weight without a layer that has a bias is taken by its own error (``MinMse``).
    """


Method: TypeAlias = (
    MinMax
    | NonOverflow
    | Percentile
    | LayerwisePercentile
    | Entropy
    | Distribution
    | MinMse
    | OutputMse
)

BY_NAME: dict[str, type[_Method]] = {
    "minmax": MinMax,
    "nonoverflow": NonOverflow,
    "percentile": Percentile,
    "layerwise": LayerwisePercentile,
    "entropy": Entropy,
    "distribution": Distribution,
    "mse": MinMse,
}
"""Methods for activations."""

FOR_WEIGHTS: dict[str, type[_Method]] = {"minmax": MinMax, "mse": MinMse, "output": OutputMse}
