"""Calibration methods as values; ``lowbit.scales`` implements them.

What was seen of a tensor is counted by the leading bits of the float: that needs no range first, merges
exactly and does not depend on the order or the batching of samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import msgspec

from lowbit.config.extensible import Extensible
from lowbit.errors import ConfigError


class Method(Extensible):
    """Base of all calibration methods; one of your own overrides the functions below."""

    __slots__ = ()

    rounds_to_nearest: ClassVar[bool] = False
    """Whether a fixed range gets the nearest power-of-two scale, which clips, or the next larger."""

    def observer(self) -> Any:
        """Return the ``lowbit.calibrate.observers.ObserverSpec`` that it needs of an activation."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it observes")

    def range_of(self, statistics: Any, spec: Any, name: str) -> tuple[float, float]:
        """Return the range that it chooses for an activation's statistics."""
        del statistics, spec
        raise NotImplementedError(f"{type(self).__name__} gives no range for {name!r}")

    def parameters_of(self, statistics: Any, spec: Any, name: str) -> Any:
        """Return quantization parameters, where they do not simply follow from a range."""
        del statistics, spec, name
        return None

    def weight_parameters_of(self, data: Any, spec: Any) -> Any:
        """Return the quantization parameters of a constant."""
        del data, spec
        raise ConfigError(
            f"{type(self).__name__} is not a method for weights; take minmax, mse or percentile"
        )


class _Method(Method, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    root of two.
    """

    nearest: bool = False


class Percentile(_Method, frozen=True, kw_only=True, tag="percentile"):
    """Clip the largest values, so that ``percentile`` percent remain in range."""

    percentile: float = 99.999


class LayerwisePercentile(_Method, frozen=True, kw_only=True, tag="layerwise"):
    """The percentile among ``candidates`` with the least quantization error on this tensor."""

    candidates: tuple[float, ...] = (99.99, 99.999, 99.99999)
    metric: Literal["mae", "mse"] = "mae"


class Entropy(_Method, frozen=True, kw_only=True, tag="entropy"):
    """The threshold whose quantized distribution diverges least (Kullback-Leibler)."""

    bins: int = 2048
    levels: int = 128


class Distribution(_Method, frozen=True, kw_only=True, tag="distribution"):
    """Range from the moments: ``deviations`` standard deviations around the mean."""

    deviations: float = 6.0


class MinMse(_Method, frozen=True, kw_only=True, tag="mse"):
    """The scale with the least mean squared quantization error."""


class OutputMse(_Method, frozen=True, kw_only=True, tag="output"):
    """For weights: the scale with the least squared error of the layer's output.

    Both what errors add to the output's variance and how far together they shift its mean is
    computed from the means and variances of the input's channels, which calibration measures. A
    weight without a layer that has a bias is taken by its own error (``MinMse``).
    """


class Hqq(_Method, frozen=True, kw_only=True, tag="hqq"):
    """For weights: half-quadratic quantization, least error in a norm below one, without data.

    Attributes:
        norm: The exponent of the norm.
        beta: How strongly errors are held to what is rounded, at first; ``growth``: what it grows by.
        iterations: How often both are found anew.
    """

    norm: float = 0.7
    beta: float = 10.0
    growth: float = 1.01
    iterations: int = 20


BY_NAME: Mapping[str, type[Method]] = MappingProxyType(
    {
        "minmax": MinMax,
        "nonoverflow": NonOverflow,
        "percentile": Percentile,
        "layerwise": LayerwisePercentile,
        "entropy": Entropy,
        "distribution": Distribution,
        "mse": MinMse,
    }
)
"""Methods for activations."""

FOR_WEIGHTS: Mapping[str, type[Method]] = MappingProxyType(
    {"minmax": MinMax, "mse": MinMse, "output": OutputMse, "hqq": Hqq}
)
