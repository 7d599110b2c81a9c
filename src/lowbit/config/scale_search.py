"""How scales of activations are chosen by the error of the outputs, as values."""

from __future__ import annotations

import msgspec

from lowbit.errors import ConfigError


class ScaleSearch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choose the scales of activations by the error of the outputs, not by that of the tensor itself.

    The few largest values of a tensor may matter little to the outputs; a smaller scale clips them and
    rounds all others more finely. Every activation that adds much noise is tried with other scales, one
    tensor at a time. The result is kept only if it lowers the error on samples held out of calibration.

    Attributes:
        samples: How many calibration samples scales are tried on, evenly spaced over all of them.
    """

    samples: int = 16

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"scale_search.samples is {self.samples}; it must be at least 1")


class SensitivityWeighting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weight the errors of activations by sensitivity: by how much they change the outputs.

    Scales of least squared error (``MinMse``) then have the least error at the outputs. Gradients measure the
    sensitivity of every tensor in one pass. Tensors without a gradient, such as those before an operator
    without a gradient rule, keep the scale of least error of their own. Networks with very large feature maps are
    skipped: gradients need all activations of a sample in memory.

    Attributes:
        samples: How many calibration samples gradients are computed on, evenly spaced over all of them. Of a
            detector, whose samples show few objects, twice as many.
    """

    samples: int = 16

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"sensitivity.samples is {self.samples}; it must be at least 1")


class PowerOfTwoFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rescale tensors so that power-of-two scales fit them (``Rescaling``).

    The best scale of a tensor is seldom a power of two; on average the nearest one doubles the rounding
    noise. A factor on the whole tensor moves its best scale to a power of two, and the linear layers before and
    after it absorb the factor. Tensors that must share a factor get the one with the least error at the outputs.
    """


class Centering(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Center what a Relu leaves around zero, so that symmetric integers use their negative half (``Rescaling``).

    Half of the tensor's range is taken off the bias of the layer before it, and added again in the biases of the
    layers after it: zero points, in all but name. The Relu becomes a Clip at the lowest integer, which the quantizer
    does by saturating, and is left out. That needs biases of 32 bits, and layers without padding after it.
    """
