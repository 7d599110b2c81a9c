"""Equalize a model's layers: it computes the same in float and quantizes better."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import onnx_ir as ir

from lowbit.config.equalize import Equalization, QuarkCle
from lowbit.equalize._smooth_math import Levels
from lowbit.equalize.exact import can_equalize, equalize_groups
from lowbit.equalize.quark import equalize_like_quark
from lowbit.equalize.result import Equalized, GroupResult, LeftOut
from lowbit.equalize.rotate import rotate
from lowbit.equalize.smooth import can_smooth, smooth
from lowbit.graph.session import Feed

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
