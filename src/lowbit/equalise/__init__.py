"""Equalise a model's layers: it computes the same in float and quantizes better."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import onnx_ir as ir

from lowbit.config.equalise import Equalisation, QuarkCle
from lowbit.equalise._smooth_math import Levels
from lowbit.equalise.exact import can_equalise, equalise_groups
from lowbit.equalise.quark import equalise_like_quark
from lowbit.equalise.result import Equalised, GroupResult, LeftOut
from lowbit.equalise.rotate import rotate
from lowbit.equalise.smooth import can_smooth, smooth
from lowbit.graph.session import Feed

__all__ = [
    "Equalised",
    "GroupResult",
    "LeftOut",
    "Levels",
    "can_equalise",
    "can_smooth",
    "equalise",
    "rotate",
    "smooth",
]


def equalise(
    model: ir.Model,
    config: Equalisation | None,
    data: Iterable[Feed] | None = None,
    *,
    keep: Container[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Equalised:
    """Return a normalised model, equalised as asked for, and what was done.

    Args:
        model: A normalised model; it is not changed.
        config: How; ``None`` gives the model itself back.
        data: Samples to see how far activations go; exact equalisation across Clips
            uses it, and absorption once more.
        keep: Nodes that are not quantized. Quark leaves them out.
        progress: Told after each sample how many are done.
    """
    if config is None:
        return Equalised(model)
    if isinstance(config, QuarkCle):
        return equalise_like_quark(model, config, keep)
    return equalise_groups(model, config, data, progress)
