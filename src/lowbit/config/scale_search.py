"""The search for scales as a value: how many samples the outputs are measured on."""

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
