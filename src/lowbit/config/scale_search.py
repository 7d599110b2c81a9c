"""Scales of activations by what the outputs feel of them, as values."""

from __future__ import annotations

import msgspec

from lowbit.errors import ConfigError


class ScaleSearch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choose the scales of activations by the error of the outputs, not by that of the tensor itself.

    The few largest numbers of a tensor may matter little to the outputs; a smaller scale clips them and
    rounds all others more finely. Every activation that brings much of the noise is tried with other
    scales by itself. What is found is kept only if it lowers the error on samples held out of calibration.

    Attributes:
        samples: How many calibration samples scales are tried on, spread over all of them.
    """

    samples: int = 16

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"scale_search.samples is {self.samples}; it must be at least 1")


class SensitivityWeighting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weigh the errors of activations by their sensitivity: by what the outputs feel of them.

    Scales of least squared error (``MinMse``) then have the least error at the outputs. Gradients tell the
    sensitivity of every tensor in one pass; tensors for which they are not known, such as those before an operator
    without a rule, keep the scale of their own least error. Networks with very large feature maps are left alone:
    gradients take all of a sample's activations at once.

    Attributes:
        samples: How many calibration samples gradients are taken on, spread over all of them.
    """

    samples: int = 16

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"sensitivity.samples is {self.samples}; it must be at least 1")


class PowerOfTwoFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multiply tensors by factors with which power-of-two scales fit them (``Rescaling``).

    The best scale of a tensor is seldom a power of two; on average the nearest one doubles the noise of
    rounding. A factor on the whole tensor moves its best scale to one, and the linear layers before and
    after it take the factor up. Of tensors that can only have one factor together, those count most whose errors
    the outputs feel most.
    """
