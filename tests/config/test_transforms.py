"""Transforms as values: strict, told apart in files, and within their bounds."""

from __future__ import annotations

import msgspec
import pytest

from lowbit.config.extensible import decode_json
from lowbit.config.transforms import (
    CrossLayerEqualization,
    FloatTransform,
    RotatedStream,
    Rotation,
    SmoothQuant,
    check_alpha,
)
from lowbit.errors import ConfigError

_STREAM = RotatedStream(producers=("embed",), consumers=("query", "key"), norm="norm")


@pytest.mark.parametrize(
    ("transform", "word"),
    [
        (CrossLayerEqualization(rounds=2, largest=8.0, headroom=1.5, absorb=True), "cross-layer"),
        (SmoothQuant(alpha=0.25, insert=True), "smooth-quant"),
        (Rotation(streams=(_STREAM,), size=8, random=True, seed=3), "rotation"),
    ],
)
def test_every_transform_is_told_apart_in_files(transform: FloatTransform, word: str) -> None:
    text = msgspec.json.encode(transform)

    assert msgspec.json.decode(text)["type"] == word
    assert decode_json(text, FloatTransform) == transform
    with pytest.raises(msgspec.ValidationError, match="bogus"):
        decode_json(text.replace(b"{", b'{"bogus": 1, ', 1), FloatTransform)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rounds", 0, "equalization.rounds is 0; at least one is needed"),
        ("largest", 0.5, "equalization.largest is 0.5; it must be 1 or more"),
        ("headroom", 0.9, "equalization.headroom is 0.9; it must be 1 or more"),
    ],
)
def test_bounds_of_equalization(field: str, value: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CrossLayerEqualization(**{field: value})
    assert getattr(CrossLayerEqualization(**{field: 1}), field) == 1


@pytest.mark.parametrize("alpha", [-0.1, 1.5])
def test_alpha_is_a_share(alpha: float) -> None:
    message = f"smooth_quant.alpha is {alpha:g}; it must lie between 0 and 1"

    with pytest.raises(ConfigError, match=message):
        SmoothQuant(alpha=alpha)
    with pytest.raises(ConfigError, match=message):
        check_alpha(alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, None])
def test_alpha_may_be_either_end_or_left_open(alpha: float | None) -> None:
    assert SmoothQuant(alpha=alpha).alpha == alpha


def test_a_rotation_needs_channels_and_a_layer() -> None:
    with pytest.raises(ConfigError, match=r"rotation.size is 1; at least two channels"):
        Rotation(streams=(_STREAM,), size=1)
    with pytest.raises(ConfigError, match=r"rotation.streams names no layer that produces"):
        Rotation(streams=(RotatedStream(norm="norm"),), size=8)
    assert Rotation(streams=(RotatedStream(consumers=("query",)),), size=2).size == 2


def test_a_rotation_cannot_be_dropped_where_it_does_not_help() -> None:
    """Equalization and smoothing can: ``keep_only_if_better`` measures them."""
    assert CrossLayerEqualization.is_optional
    assert SmoothQuant.is_optional
    assert not Rotation.is_optional


def test_the_packages_own_transforms_have_no_implementation_of_their_own() -> None:
    for transform in (
        CrossLayerEqualization(),
        SmoothQuant(),
        Rotation(streams=(_STREAM,), size=8),
    ):
        assert transform.implementation() is None
