"""Rewrites of a float model: the same function, easier to quantize, in the target's operators."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import onnx_ir as ir

from lowbit.config.transforms import Equalization, QuarkCle
from lowbit.graph.session import Feed
from lowbit.quark.cle import equalize_like_quark
from lowbit.transforms._smooth_math import Levels
from lowbit.transforms.cross_layer import (
    Equalized,
    GroupResult,
    LeftOut,
    can_equalize,
    equalize_groups,
)
from lowbit.transforms.rotation import rotate
from lowbit.transforms.smooth_quant import can_smooth, smooth

__all__ = [
    "Equalized",
    "GroupResult",
    "LeftOut",
    "Levels",
    "can_equalize",
    "can_smooth",
    "equalize",
    "rotate",
    "smooth",
]


def equalize(
    model: ir.Model,
    config: Equalization | None,
    data: Iterable[Feed] | None = None,
    *,
    keep: Container[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Equalized:
    """Return a normalized model, equalized as asked for, and what was done.

    Args:
        model: A normalized model; it is not changed.
        config: How; ``None`` gives the model itself back.
        data: Samples to see how far activations go; exact equalization across Clips
            uses it, and absorption once more.
        keep: Nodes that are not quantized. Quark leaves them out.
        progress: Told after each sample how many are done.
    """
    if config is None:
        return Equalized(model)
    if isinstance(config, QuarkCle):
        return equalize_like_quark(model, config, keep)
    return equalize_groups(model, config, data, progress)
