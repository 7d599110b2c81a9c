"""How pictures become the values of one model input: axes, channels, batch, framing.

Decided once from the model and the preprocessing. No pixel is touched here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowbit.data.feeds import InputInfo
from lowbit.data.framing import Framing, choose_framing
from lowbit.data.preprocessing import Layout, Preprocessing
from lowbit.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturePlan:
    """Everything that is done to a picture.

    Attributes:
        info: The input the pictures are for.
        preprocessing: Values and order of the channels, interpolation.
        framing: Resize and crop.
        channels: 3, or 1 for gray.
        is_channels_last: Whether the channels are the last axis of the input.
        batch: Pictures that make one feed.
    """

    info: InputInfo
    preprocessing: Preprocessing
    framing: Framing
    channels: int
    is_channels_last: bool
    batch: int

    @property
    def has_batch_axis(self) -> bool:
        """Whether the input has an axis for the batch."""
        return self.info.shape is None or len(self.info.shape) == 4

    @property
    def takes_raw_pixels(self) -> bool:
        """Whether the input wants the pixels 0..255 themselves."""
        return self.info.dtype == np.uint8

    def __str__(self) -> str:
        wish = self.preprocessing
        order = wish.channel_order if self.channels == 3 else "gray"
        layout = "NHWC" if self.is_channels_last else "NCHW"
        steps = [f"{self.framing} ({wish.interpolation})", f"{order} {layout}"]
        if not self.takes_raw_pixels:
            steps.append(f"scale {wish.scale:.6g}")
            steps += [f"mean {_listed(wish.mean)}"] if wish.mean else []
            steps += [f"std {_listed(wish.std)}"] if wish.std else []
        return ", ".join(steps)


def plan_pictures(inputs: Sequence[InputInfo], wish: Preprocessing) -> PicturePlan:
    """Return how pictures are fed to a model, or say why they cannot be."""
    info = _picture_input(inputs)
    shape = (None,) * 4 if info.shape is None else info.shape
    is_channels_last = _is_channels_last(info, shape[-3:], wish.layout)
    *_, height, width = (_move_last_first(shape[-3:]) if is_channels_last else shape)[-3:]
    plan = PicturePlan(
        info=info,
        preprocessing=wish,
        framing=choose_framing(wish, (_fixed(height), _fixed(width)), info.name),
        channels=_channels(info, shape[-1 if is_channels_last else -3]),
        is_channels_last=is_channels_last,
        batch=_fixed(shape[0]) or 1 if len(shape) == 4 else 1,
    )
    _check_values(plan)
    return plan


def _picture_input(inputs: Sequence[InputInfo]) -> InputInfo:
    way_out = "give the samples as a .npz with one array for each input instead"
    if len(inputs) != 1:
        names = ", ".join(repr(info.name) for info in inputs)
        raise DataError(
            f"pictures can feed a model of one input, this one has {len(inputs)} ({names}): {way_out}"
        )
    info = inputs[0]
    if info.shape is not None and len(info.shape) not in (3, 4):
        raise DataError(
            f"pictures need an input of 4 (or 3) dimensions, {info.name!r} has shape "
            f"{info.shape_text}: {way_out}"
        )
    if not info.is_float and info.dtype != np.uint8:
        raise DataError(
            f"pictures need a float or uint8 input, {info.name!r} is {info.dtype}: {way_out}"
        )
    return info


def _is_channels_last(info: InputInfo, dims: tuple[int | str | None, ...], layout: Layout) -> bool:
    if layout != "auto":
        return layout == "NHWC"
    if dims[0] in (1, 3):
        return False
    if dims[-1] in (1, 3):
        return True
    raise DataError(
        f"input {info.name!r} of shape {info.shape_text} has no axis of 1 or 3 channels to tell "
        "its layout by: give --layout NCHW or NHWC (layout= of Preprocessing)"
    )


def _channels(info: InputInfo, size: int | str | None) -> int:
    channels = _fixed(size)
    if channels not in (None, 1, 3):
        raise DataError(
            f"input {info.name!r} of shape {info.shape_text} takes {channels} channels, pictures "
            "have 1 or 3: give another --layout, or the samples as a .npz"
        )
    return channels or 3


def _check_values(plan: PicturePlan) -> None:
    for what, values in (("mean", plan.preprocessing.mean), ("std", plan.preprocessing.std)):
        if values is None:
            continue
        if plan.takes_raw_pixels:
            raise DataError(
                f"input {plan.info.name!r} is uint8 and takes the pixels as they are, so {what} "
                f"{_listed(values)} cannot be applied: leave it out"
            )
        if len(values) not in (1, plan.channels):
            raise DataError(
                f"{what} has {len(values)} values, input {plan.info.name!r} has {plan.channels} "
                f"channel: give --{what} with one value"
            )


def _fixed(size: int | str | None) -> int | None:
    return size if isinstance(size, int) else None


def _move_last_first(dims: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
    return dims[-1:] + dims[:-1]


def _listed(values: Sequence[float]) -> str:
    return ",".join(f"{value:.6g}" for value in values)
