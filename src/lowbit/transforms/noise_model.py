"""What rounding adds to a model's outputs, as a function of the factors of a group of channels.

Three things are rounded around a group: the activations that consumers read, the weights of the
consumers, and those of the producers. One scale serves a whole tensor (or an output channel of
weights), so each adds noise in proportion to the square of its largest number; a factor f on a
channel divides the noise of what comes before it by f, and multiplies what its consumers' weights add.
Noise counts at the outputs of the consumers, as a share of what is there.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from lowbit.numerics.formats import DoubleArray

_TINY = 1e-30
# How far the largest weight may go, in octaves: of producers, and of consumers.
_CAPS_BEFORE = np.arange(-2.0, 5.0)
_CAPS_AFTER = np.arange(-5.0, 2.0)
_FINER = np.array([-0.5, 0.0, 0.5])


@dataclasses.dataclass(frozen=True, slots=True)
class Rounded:
    """Numbers that share a scale, by channel.

    ``largest`` are the largest of each channel, ``noise`` what one squared unit of rounding error in
    every number of the channel does to the outputs.
    """

    largest: DoubleArray
    noise: DoubleArray


@dataclasses.dataclass(frozen=True, slots=True)
class GroupNoise:
    """All that is rounded around a group.

    ``activations`` and the ``producers``' weights grow with a channel's factor, and their noise falls
    by the square of it. The ``consumers``' weights shrink, and their noise grows.
    """

    activations: tuple[Rounded, ...]
    producers: tuple[Rounded, ...]
    consumers: tuple[Rounded, ...]

    def total(self, factors: DoubleArray) -> DoubleArray:
        """Return the noise for rows of factors."""
        squares = np.square(factors)
        found = np.zeros(factors.shape[:-1])
        for part in (*self.activations, *self.producers):
            reach = np.square((factors * part.largest).max(axis=-1))
            found += reach * (part.noise / squares).sum(axis=-1)
        for part in self.consumers:
            reach = np.square((part.largest / factors).max(axis=-1))
            found += reach * (part.noise * squares).sum(axis=-1)
        return found


def least_noise(group: GroupNoise, lowest: DoubleArray, highest: DoubleArray) -> DoubleArray:
    """Return the factors between bounds that add the least noise.

    Were the largest number of every tensor known, so were each channel's best factor, in closed
    form. A factor on all channels changes nothing, so the activations' largest may stay as it is;
    searched are those of both kinds of weights, in octaves.
    """
    best = np.clip(np.ones_like(lowest), lowest, highest)
    least = float(group.total(best))
    if not np.isfinite(least) or least <= 0:
        return best
    caps = np.array(list(itertools.product(_CAPS_BEFORE, _CAPS_AFTER)))
    for _ in range(2):
        found = _at_caps(group, caps, lowest, highest)
        noise = group.total(found)
        index = int(np.argmin(np.where(np.isfinite(noise), noise, np.inf)))
        if noise[index] < least:
            best, least = found[index], float(noise[index])
        caps = caps[index] + np.array(list(itertools.product(_FINER, _FINER)))
    return best


def _at_caps(
    group: GroupNoise, caps: DoubleArray, lowest: DoubleArray, highest: DoubleArray
) -> DoubleArray:
    """Return the best factors for rows of caps: on producers' and on consumers' weights."""
    up, down = (np.exp2(column)[:, None] for column in caps.T)
    same = np.ones_like(up)
    growing = [(part, same) for part in group.activations]
    growing += [(part, up) for part in group.producers]
    gain, loss = np.full_like(up, _TINY), np.full_like(up, _TINY)
    for part, cap in growing:
        gain = gain + part.noise * np.square(part.largest.max() * cap)
    for part in group.consumers:
        loss = loss + part.noise * np.square(part.largest.max() * down)
    wanted = (gain / loss) ** 0.25
    for part in group.consumers:
        wanted = np.maximum(wanted, part.largest / (part.largest.max() * down + _TINY))
    for part, cap in growing:
        wanted = np.minimum(wanted, part.largest.max() * cap / (part.largest + _TINY))
    return np.asarray(np.clip(wanted, lowest, highest))


def joined(parts: Sequence[Rounded]) -> tuple[Rounded, ...]:
    """Return those parts that add any noise."""
    return tuple(part for part in parts if part.noise.any() and part.largest.any())
