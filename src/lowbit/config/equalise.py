"""Cross-layer equalisation as values; ``lowbit.equalise`` does the work.

Equalisation moves a factor for each channel from one layer's weights into the next layer's. The
model computes the same in float, and one scale a tensor then fits its weights better.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from lowbit.errors import ConfigError


class QuarkCle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="quark"):
    """AMD Quark's cross-layer equalisation, to the last bit.

    Attributes:
        steps: How often all patterns are gone through; -1: until the weights stop changing.
        weight_threshold: A channel whose two largest weights add up to less keeps its weights.
        append_bias: Whether a layer's bias counts as one of its weights.
        use_threshold: Whether ``weight_threshold`` applies.
        total_layer_diff_threshold: With ``steps`` -1, the change at which to stop: the mean over
            each layer's weights, added up over all layers.
        replace_relu6: Turn every Clip from 0 to 6 into Relu first. **This changes what the model
            computes**; it is here because Quark has it.
    """

    steps: int = 1
    weight_threshold: float = 0.5
    append_bias: bool = True
    use_threshold: bool = True
    total_layer_diff_threshold: float = 2e-7
    replace_relu6: bool = False

    def __post_init__(self) -> None:
        if self.steps < -1:
            raise ConfigError(
                f"equalise.steps is {self.steps}; give how many, or -1 for until it settles"
            )


class Equalise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="groups"):
    """Exact equalisation of all layers around tensors that share their channels.

    Between layers the channels may pass activations, pooling and sums; a Clip's channels are
    scaled as far as the data shows that they stay below its upper bound.

    Attributes:
        rounds: How often all groups are gone through, unless they settle before.
        largest: The largest factor a channel is multiplied or divided by in all.
        headroom: How far beyond the largest value seen a Clip's channel must still be free of
            the upper bound; 1 is exact on the data, more is safer on other data.
    """

    rounds: int = 4
    largest: float = 16.0
    headroom: float = 1.0

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"equalise.rounds is {self.rounds}; at least one is needed")
        if self.largest < 1:
            raise ConfigError(f"equalise.largest is {self.largest:g}; it must be 1 or more")
        if self.headroom < 1:
            raise ConfigError(f"equalise.headroom is {self.headroom:g}; it must be 1 or more")


Equalisation: TypeAlias = QuarkCle | Equalise
