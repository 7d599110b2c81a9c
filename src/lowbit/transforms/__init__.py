"""Transforms of the float model: the same function, easier to quantize, in the target's operators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lowbit.config.transforms import (
    CrossLayerEqualization,
    FloatTransform,
    Rescaling,
    Rotation,
    SmoothQuant,
)
from lowbit.errors import ConfigError
from lowbit.transforms.cross_layer import CrossLayer
from lowbit.transforms.implementation import Context, Implementation, Levels, TransformedModel
from lowbit.transforms.rescaling import Rescale
from lowbit.transforms.rotation import Rotate
from lowbit.transforms.smooth_quant import Smooth

__all__ = ["TRANSFORMS", "Context", "Levels", "TransformedModel", "implementation_of"]

TRANSFORMS: Mapping[type[Any], Implementation] = MappingProxyType(
    {
        CrossLayerEqualization: CrossLayer(),
        SmoothQuant: Smooth(),
        Rotation: Rotate(),
        Rescaling: Rescale(),
    }
)
"""The implementation of each kind of transform."""


def implementation_of(config: FloatTransform) -> Implementation:
    """Return the implementation of a transform: the package's own, or the one it brings along."""
    found: Implementation | None = TRANSFORMS.get(type(config)) or config.implementation()
    if found is None:
        kind = type(config).__name__
        raise ConfigError(f"{kind} has no implementation: return one from implementation()")
    return found
