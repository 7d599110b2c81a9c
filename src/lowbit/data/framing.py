"""Which part of a picture a model sees, and at what size: the decisions, without any pixel.

``Preprocessing`` says what is wanted, the model says what is fixed; ``choose_framing`` settles it
once for all pictures, ``Framing`` then answers for a picture of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lowbit.data.preprocessing import Preprocessing, as_size
from lowbit.errors import DataError

Size: TypeAlias = tuple[int, int]
"""Height and width, in this order."""

FreeSize: TypeAlias = tuple[int | None, int | None]
"""Height and width of a model input; ``None`` where it takes any."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Resize the whole picture to this size, whatever its proportions."""

    size: Size

    def fit(self, _picture: Size) -> Size:
        """Return the size a picture is resized to."""
        return self.size

    def __str__(self) -> str:
        return f"resized to {_text(self.size)}"


@dataclass(frozen=True, slots=True)
class Cover:
    """Resize in proportion until this size is just covered."""

    size: Size

    def fit(self, picture: Size) -> Size:
        """Return the size a picture is resized to."""
        factor = max(want / has for want, has in zip(self.size, picture, strict=True))
        height, width = (
            max(want, round(has * factor)) for want, has in zip(self.size, picture, strict=True)
        )
        return height, width

    def __str__(self) -> str:
        if self.size[0] == self.size[1]:
            return f"shorter side resized to {self.size[0]}"
        return f"resized to cover {_text(self.size)}"


@dataclass(frozen=True, slots=True)
class Letterbox:
    """Resize in proportion until the picture just fits into this size; pad the rest."""

    size: Size

    def fit(self, picture: Size) -> Size:
        """Return the size a picture is resized to, before the padding."""
        factor = min(want / has for want, has in zip(self.size, picture, strict=True))
        height, width = (max(1, round(has * factor)) for has in picture)
        return height, width

    def __str__(self) -> str:
        return f"letterboxed to {_text(self.size)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """The resize and the crop that pictures get, in this order."""

    resize: Stretch | Cover | Letterbox | None = None
    crop: Size | None = None

    def __str__(self) -> str:
        crop = None if self.crop is None else f"cropped to {_text(self.crop)}"
        return ", ".join(str(step) for step in (self.resize, crop) if step is not None)


def choose_framing(wish: Preprocessing, fixed: FreeSize, input_name: str) -> Framing:
    """Return how pictures get the size that is wished for and that the model can take."""
    height, width = fixed
    known = None if height is None or width is None else (height, width)
    if wish.letterbox:
        framing = _letterbox(wish, known, input_name)
    elif wish.resize is None and wish.crop is None:
        framing = Framing(resize=Stretch(_need(known, fixed, input_name)))
    elif wish.proportional and known is not None and wish.resize and wish.crop:
        framing = _in_proportion(as_size(wish.resize), as_size(wish.crop), known)
    else:
        framing = _as_wished(wish, known)
    _check_size(framing, fixed, input_name)
    return framing


def _letterbox(wish: Preprocessing, known: Size | None, input_name: str) -> Framing:
    given = None if wish.resize is None else as_size(wish.resize)
    size = known or given if wish.proportional else given or known
    return Framing(resize=Letterbox(_need(size, (None, None), input_name)))


def _need(size: Size | None, fixed: FreeSize, input_name: str) -> Size:
    if size is None:
        have = "x".join("?" if side is None else str(side) for side in fixed)
        raise DataError(
            f"input {input_name!r} takes pictures of {have} (height x width), so their size is "
            "not known: give --resize and/or --crop (resize=, crop= of Preprocessing)"
        )
    return size


def _in_proportion(resize: Size, crop: Size, known: Size) -> Framing:
    height, width = (
        round(side * whole / part) for side, whole, part in zip(known, resize, crop, strict=True)
    )
    return Framing(resize=Cover((height, width)), crop=known)


def _as_wished(wish: Preprocessing, known: Size | None) -> Framing:
    crop = known if wish.crop is None else as_size(wish.crop)
    if wish.resize is None:
        return Framing(crop=crop)
    if isinstance(wish.resize, int):
        return Framing(resize=Cover(as_size(wish.resize)), crop=crop)
    return Framing(resize=Stretch(wish.resize), crop=crop)


def _check_size(framing: Framing, fixed: FreeSize, input_name: str) -> None:
    """Refuse a framing that cannot work for any picture, before one is read."""
    if _is_always_too_small(framing):
        raise DataError(
            f"pictures for input {input_name!r} are {framing}, but are then too small for the "
            "crop: give a larger --resize or a smaller --crop"
        )
    after = framing.crop
    if after is None and framing.resize is not None and not isinstance(framing.resize, Cover):
        after = framing.resize.size
    if after and any(side not in (None, has) for side, has in zip(fixed, after, strict=True)):
        want = "x".join("?" if side is None else str(side) for side in fixed)
        raise DataError(
            f"pictures for input {input_name!r} would be {_text(after)} (height x width), but the "
            f"model fixes {want}: leave out --resize and --crop, or give sizes that fit"
        )


def _is_always_too_small(framing: Framing) -> bool:
    if framing.resize is None or framing.crop is None:
        return False
    short = [has < want for has, want in zip(framing.resize.size, framing.crop, strict=True)]
    # A covering resize leaves one side longer than asked for, which may be the one that counts.
    return all(short) if isinstance(framing.resize, Cover) else any(short)


def _text(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
