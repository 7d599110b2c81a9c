"""Other scales, which cost nothing on any target, for the activations that add the most noise.

A scale is chosen by the tensor's own squared error. The error of the outputs may behave differently: a power
of two that clips a few large values may be far better than the next one, which rounds all others coarsely.
The noisiest activations are found by bisecting groups of them, and each is tried with other scales,
everything else in float.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from lowbit.numerics.spacing import even_bounds

Factors = Mapping[str, float]
"""Activations that are quantized, and what their scales are multiplied by."""

Noises = Callable[[Sequence[Factors]], Sequence[float]]
"""Returns the noise of each, with everything else in float."""

POWERS_OF_TWO = (0.5, 2.0)
FLOATS = (0.5, 0.75)
"""Factors that are tried on scales that are powers of two, and on others."""

_GROUPS, _HALVES, _TRIED = 8, 24, 5
"""Groups at first, halves of them that are measured, and tensors that are tried with other scales."""

_STANDS_OUT, _TELLING = 0.2, 0.05
"""Shares of the noise: of a group without which nothing is to be gained, and of what is looked into."""

_BETTER = 0.75
"""Another scale is taken if it leaves at most this share of the noise."""


def find_factors(
    groups: Sequence[Sequence[str]], noises: Noises, tried: Sequence[float]
) -> Factors:
    """Return the factors of scales that lessen the noise; tensors of a group share their scale."""
    found = _divided(groups, noises)
    total = sum(noise for _, noise in found)
    single = [(some[0], noise) for some, noise in found if len(some) == 1]
    noisy = sorted((row for row in single if row[1] > _TELLING * total), key=lambda row: -row[1])
    trials = [(members, noise, factor) for members, noise in noisy[:_TRIED] for factor in tried]
    measured = noises([dict.fromkeys(members, factor) for members, _, factor in trials])
    best: dict[tuple[str, ...], tuple[float, float]] = {}
    for (members, noise, factor), found_noise in zip(trials, measured, strict=True):
        key = tuple(members)
        if found_noise < min(_BETTER * noise, best.get(key, (noise, 1.0))[0]):
            best[key] = (found_noise, factor)
    return {name: factor for members, (_, factor) in best.items() for name in members}


_Part = tuple[list[Sequence[str]], float]


def _divided(groups: Sequence[Sequence[str]], noises: Noises) -> list[_Part]:
    """Return the groups in parts with their noises, divided where most of it is."""
    parts = _measured(_halves(list(groups), _GROUPS), noises)
    total = sum(noise for _, noise in parts)
    if not any(noise > _STANDS_OUT * total for _, noise in parts):
        return []
    effort = _HALVES
    while effort >= 2:
        noisy = [p for p in parts if len(p[0]) > 1 and p[1] > _TELLING * total]
        noisy = sorted(noisy, key=lambda part: -part[1])[: effort // 2]
        if not noisy:
            break
        effort -= 2 * len(noisy)
        halves = itertools.chain.from_iterable(_halves(part, 2) for part, _ in noisy)
        parts = [p for p in parts if p not in noisy] + _measured(list(halves), noises)
    return parts


def _measured(parts: Sequence[list[Sequence[str]]], noises: Noises) -> list[_Part]:
    asked = [dict.fromkeys(itertools.chain.from_iterable(part), 1.0) for part in parts]
    return list(zip(parts, noises(asked), strict=True))


def _halves(groups: list[Sequence[str]], count: int) -> list[list[Sequence[str]]]:
    return [groups[a:b] for a, b in itertools.pairwise(even_bounds(len(groups), count))]
