"""Transforms of the float model as values: the same function, easier to quantize.

Cross-layer equalization moves a factor for each channel from one layer's weights into the next
layer's, so that one scale per tensor fits them better. SmoothQuant moves one from activations into the
weights that multiply them. Rotation spreads outliers over all channels. Rescaling multiplies whole
tensors. ``lowbit.transforms`` does the work.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from lowbit.config.extensible import Extensible
from lowbit.errors import ConfigError


class FloatTransform(Extensible):
    """Base of all transforms; one of your own returns from ``implementation`` what does the work."""

    __slots__ = ()

    is_optional: ClassVar[bool] = True
    """Whether the transform may be dropped where it does not help (``keep_only_if_better``)."""

    reads_data: ClassVar[bool] = True
    """Whether what it does depends on samples."""

    def implementation(self) -> Any:
        """Return a ``lowbit.transforms.Implementation``; ``None`` for the package's own."""
        return None


class CrossLayerEqualization(
    FloatTransform,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="cross-layer",
):
    """Cross-layer equalization of all layers around tensors that share their channels.

    Between layers the channels may pass activations, pooling and sums; a Clip's channels are
    scaled as far as the data shows that they stay below its upper bound.

    Attributes:
        rounds: How often all groups are gone through, unless they settle before.
        largest: The largest factor a channel is multiplied or divided by in all.
        headroom: How far beyond the largest value seen a Clip's channel must still be free of
            the upper bound; 1 is exact on the data, more is safer on other data. With 1, MobileNetV2
            in XINT8 has 1 dB less on images that were not seen.
        absorb: Whether what a channel never falls below before its Relu moves from the bias
            before it into the biases after it; ``headroom`` then divides the least value seen.
        objective: What factors are chosen for: that rounding activations and weights adds the least
            ``noise`` to the outputs of the layers that consume a channel, or that the largest weights
            on both sides have equal ``ranges``, which is all that can be done without data.
    """

    rounds: int = 4
    largest: float = 16.0
    headroom: float = 1.25
    absorb: bool = False
    objective: Literal["noise", "ranges"] = "noise"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"equalization.rounds is {self.rounds}; at least one is needed")
        if self.largest < 1:
            raise ConfigError(f"equalization.largest is {self.largest:g}; it must be 1 or more")
        if self.headroom < 1:
            raise ConfigError(f"equalization.headroom is {self.headroom:g}; it must be 1 or more")


class SmoothQuant(
    FloatTransform,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="smooth-quant",
):
    """Smoothing of what MatMul and Gemm read (Xiao et al. 2022, arXiv:2211.10438).

    Channel j of the input is divided by s = max|x|^alpha / max|w|^(1 - alpha), and the weights on
    it are multiplied by s. What produces the channels takes the factor: a normalization, a constant
    that multiplies, or the layer before.

    Attributes:
        alpha: How much of the difficulty moves from activations to weights; ``None``: for each
            layer, what its own output error is smallest with, nothing at all included.
        insert: Whether a Mul is put where no producer can take the factor.
    """

    alpha: float | None = None
    insert: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha)


def check_alpha(alpha: float | None) -> None:
    """Raise unless a SmoothQuant alpha is a share."""
    if alpha is not None and not 0 <= alpha <= 1:
        raise ConfigError(f"smooth_quant.alpha is {alpha:g}; it must lie between 0 and 1")


class RotatedStream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers that produce a stream of channels, and those that consume it.

    Attributes:
        producers: Layers, embeddings (Gather) or sums with a constant that produce the channels.
        consumers: Layers that consume them, after the normalization if there is one.
        norm: The normalization between, whose factors move into the consumers; or the Mul that
            applies them, where a normalization is written out.
    """

    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    norm: str | None = None


class Rotation(
    FloatTransform,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="rotation",
):
    """Rotate the channels of a transformer so that outliers spread (QuaRot, arXiv:2404.00456).

    Attributes:
        streams: Which layers. What several streams name is rotated once. None: the widest residual stream,
            found by structure.
        size: How many channels the stream has, if layers are named.
        random: Whether the matrix has random signs, drawn from ``seed``.
        seed: Of these.
    """

    is_optional: ClassVar[bool] = False
    reads_data: ClassVar[bool] = False

    streams: tuple[RotatedStream, ...] = ()
    size: int | None = None
    random: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.streams and self.size is None:
            return
        if self.size is None:
            raise ConfigError("rotation.size is missing: say how many channels the streams have")
        if self.size < 2:
            raise ConfigError(f"rotation.size is {self.size}; at least two channels are needed")
        if not any(stream.producers or stream.consumers for stream in self.streams):
            raise ConfigError("rotation.streams names no layer that produces or consumes channels")


class Rescaling(
    FloatTransform,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="rescaling",
):
    """Multiply whole tensors by factors and take offsets off them; the layers that produce and consume them absorb both.

    One factor for all channels of a tensor changes nothing where scales are floats. Powers of two it can
    make fit: a tensor that reaches to 5 wastes three eighths of a scale that holds 8. Factors are
    found by ``PowerOfTwoFit``.

    A symmetric format has no zero point and wastes its negative integers on what a Relu leaves. An offset of half
    the range uses them. Offsets are found by ``Centering``.

    Attributes:
        factors: What tensors are multiplied by; those that must have the same factor may be given by one
            of them.
        ranges: The ranges that tensors have then.
        offsets: What is subtracted from the outputs of a Relu or Clip, after the factors; tensors that must have
            the same offset may be given by one of them.
    """

    is_optional: ClassVar[bool] = False
    reads_data: ClassVar[bool] = False

    factors: dict[str, float] = {}
    ranges: dict[str, tuple[float, float]] = {}
    offsets: dict[str, float] = {}

    def __post_init__(self) -> None:
        for tensor, factor in self.factors.items():
            if not 0 < factor < float("inf"):
                raise ConfigError(
                    f"rescaling.factors[{tensor!r}] is {factor:g}; it must be above 0 and finite"
                )
        for tensor, offset in self.offsets.items():
            if not 0 <= offset < float("inf"):
                raise ConfigError(
                    f"rescaling.offsets[{tensor!r}] is {offset:g}; it must be 0 or more, and finite"
                )
