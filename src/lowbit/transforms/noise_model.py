"""A model of the rounding noise at the outputs, as a function of the factors of a group of channels.

Three things are rounded around a group: the activations that consumers read, the weights of the
consumers, and those of the producers. One scale serves a whole tensor (or an output channel of
weights), so each adds noise in proportion to the square of its largest number; a factor f on a
channel divides the noise of what comes before it by f, and multiplies what its consumers' weights add.
Noise counts at the outputs of the consumers, as a share of what is there.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from lowbit.numerics.formats import DoubleArray

_TINY = 1e-30
# How far the largest weight may go, in octaves: of producers, and of consumers.
_CAPS = np.array(list(itertools.product(np.arange(-2.0, 5.0), np.arange(-5.0, 2.0))))
_FINER = np.array(list(itertools.product((-0.5, 0.0, 0.5), repeat=2)))


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
        inverse = 1 / squares
        found = np.zeros(factors.shape[:-1])
        for part in (*self.activations, *self.producers):
            found += np.square((factors * part.largest).max(axis=-1)) * (inverse @ part.noise)
        for part in self.consumers:
            found += np.square((part.largest / factors).max(axis=-1)) * (squares @ part.noise)
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
    caps, known = _CAPS, _Channels.of(group)
    for _ in range(2):
        found = np.clip(known.at(caps), lowest, highest)
        noise = group.total(found)
        index = int(np.argmin(np.where(np.isfinite(noise), noise, np.inf)))
        if noise[index] < least:
            best, least = found[index], float(noise[index])
        caps = caps[index] + _FINER
    return best


@dataclasses.dataclass(frozen=True, slots=True)
class _Channels:
    """The inputs to each channel's best factor, other than the caps.

    ``gain``, ``loss``: the noise that a factor removes and adds, were all weights as large as they
    are. ``most``, ``least``: how far it may go before a channel is the largest of its tensor.
    """

    activations_gain: DoubleArray
    producers_gain: DoubleArray
    loss: DoubleArray
    activations_most: DoubleArray
    producers_most: DoubleArray
    least: DoubleArray

    @classmethod
    def of(cls, group: GroupNoise) -> _Channels:
        activations, producers, consumers = group.activations, group.producers, group.consumers
        return cls(
            _power(activations),
            _power(producers),
            _power(consumers),
            _smallest([part.largest.max() / (part.largest + _TINY) for part in activations]),
            _smallest([part.largest.max() / (part.largest + _TINY) for part in producers]),
            -_smallest([-part.largest / (part.largest.max() + _TINY) for part in consumers]),
        )

    def at(self, caps: DoubleArray) -> DoubleArray:
        """Return the best factors for rows of caps: on producers' and on consumers' weights."""
        up, down = (np.exp2(column)[:, None] for column in caps.T)
        gain = self.activations_gain + self.producers_gain * np.square(up) + _TINY
        wanted = np.sqrt(np.sqrt(gain / (self.loss * np.square(down) + _TINY)))
        wanted = np.maximum(wanted, self.least / down)
        most = np.minimum(self.activations_most, self.producers_most * up)
        return np.asarray(np.minimum(wanted, most))


def _power(parts: Sequence[Rounded]) -> DoubleArray:
    """Return the noise of each channel of some parts, with their largest numbers as they are."""
    return np.asarray(sum((p.noise * np.square(p.largest.max()) for p in parts), np.zeros(1)))


def _smallest(bounds: Sequence[DoubleArray]) -> DoubleArray:
    return functools.reduce(np.minimum, bounds, np.full(1, np.inf))


def joined(parts: Sequence[Rounded]) -> tuple[Rounded, ...]:
    """Return those parts that add any noise."""
    return tuple(part for part in parts if part.noise.any() and part.largest.any())
