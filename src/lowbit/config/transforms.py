"""Cross-layer equalization and SmoothQuant as values; ``lowbit.transforms`` does the work.

Equalization moves a factor for each channel from one layer's weights into the next layer's. The
model computes the same in float, and one scale a tensor then fits its weights better. SmoothQuant
moves one from activations into the weights that multiply them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from lowbit.errors import ConfigError


class QuarkCle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="quark"):
    """AMD Quark's cross-layer equalization, to the last bit.

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
                f"equalize.steps is {self.steps}; give how many, or -1 for until it settles"
            )


class CrossLayerEqualization(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="groups"
):
    """Exact equalization of all layers around tensors that share their channels.

    Between layers the channels may pass activations, pooling and sums; a Clip's channels are
    scaled as far as the data shows that they stay below its upper bound.

    Attributes:
        rounds: How often all groups are gone through, unless they settle before.
        largest: The largest factor a channel is multiplied or divided by in all.
        headroom: How far beyond the largest value seen a Clip's channel must still be free of
            the upper bound; 1 is exact on the data, more is safer on other data.
        absorb: Whether what a channel never falls below before its Relu moves from the bias
            before into the biases behind; ``headroom`` then divides the least value seen.
    """

    rounds: int = 4
    largest: float = 16.0
    headroom: float = 1.0
    absorb: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"equalize.rounds is {self.rounds}; at least one is needed")
        if self.largest < 1:
            raise ConfigError(f"equalize.largest is {self.largest:g}; it must be 1 or more")
        if self.headroom < 1:
            raise ConfigError(f"equalize.headroom is {self.headroom:g}; it must be 1 or more")


Equalization: TypeAlias = QuarkCle | CrossLayerEqualization


class SmoothQuant(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="smooth"
):
    """Exact smoothing of what MatMul and Gemm read (Xiao et al. 2022, arXiv:2211.10438).

    Channel j of the input is divided by s = max|x|^alpha / max|w|^(1 - alpha), and the weights on
    it are multiplied by s. What writes the channels takes the factor: a normalization, a constant
    that multiplies, or the layer before.

    Attributes:
        alpha: How much of the difficulty moves from activations to weights; ``None``: for each
            layer, what its own output error is smallest with, nothing at all included.
        insert: Whether a Mul is put where nothing takes the factor.
    """

    alpha: float | None = None
    insert: bool = False

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)


class QuarkSmoothQuant(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="quark"
):
    """AMD Quark's SmoothQuant: a Mul of its own before each MatMul with constant weights.

    Attributes:
        alpha: How much of the difficulty moves from activations to weights.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)


def _check_alpha(alpha: float | None) -> None:
    if alpha is not None and not 0 <= alpha <= 1:
        raise ConfigError(f"smooth.alpha is {alpha:g}; it must lie between 0 and 1")


Smoothing: TypeAlias = SmoothQuant | QuarkSmoothQuant


class Rotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers that write a stream of channels, and those that read it.

    Attributes:
        writers: Layers, embeddings (Gather) or sums with a constant that write the channels.
        readers: Layers that read them, behind the normalization if there is one.
        norm: The normalization between, whose factors move into the readers; or the Mul that
            applies them, where a normalization is written out.
    """

    writers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    norm: str | None = None


class Rotate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rotate the channels of a transformer so that outliers spread (arXiv:2404.00456).

    Attributes:
        pairs: Which layers. What several pairs name is rotated once.
        size: How many channels the stream has.
        random: Whether the matrix has random signs, drawn from ``seed``.
        seed: Of these.
    """

    pairs: tuple[Rotation, ...]
    size: int
    random: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ConfigError(f"rotate.size is {self.size}; at least two channels are needed")
        if not any(pair.writers or pair.readers for pair in self.pairs):
            raise ConfigError("rotate.pairs names no layer that writes or reads the channels")
