"""Verdicts on one output, and arrays with noise to give them on."""

from __future__ import annotations

import numpy as np

from lowbit.evaluate.output_errors import OutputErrors
from lowbit.evaluate.output_kinds import MeasuredOutput
from lowbit.evaluate.outputs import OutputSlice


def verdict_of(kind: str, want: list[np.ndarray], got: list[np.ndarray], **fields):
    """Return the verdict on one output of some samples."""
    errors = OutputErrors([MeasuredOutput(OutputSlice("y"), kind, "y", **fields)], {})
    for a, b in zip(want, got, strict=True):
        errors.add({"y": a}, {"y": b})
    return errors.verdict(held_out=True)


def rows_of(count: int, *shape: int, seed: int = 0) -> list[np.ndarray]:
    """Return arrays of normal numbers."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(count)]


def noisy_maps(*ratios_db: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return maps, and the same with noise of so many decibels, one each."""
    want, noise = (
        rows_of(len(ratios_db), 1, 4, 50, 50),
        rows_of(len(ratios_db), 1, 4, 50, 50, seed=1),
    )
    pairs = zip(want, noise, ratios_db, strict=True)
    return want, [a + b * np.float32(10 ** (-ratio / 20)) for a, b, ratio in pairs]


def sparse_maps(count: int, noise: float, loud: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return maps of scores with one strong one each, and the same with noise, much of it in the first."""
    rng = np.random.default_rng(4)
    want = [np.zeros((1, 4, 64), np.float32) for _ in range(count)]
    for a in want:
        a[0, 0, 3] = 1
    strength = [loud] + [noise] * (count - 1)
    got = [
        a + rng.normal(size=a.shape).astype(np.float32) * s
        for a, s in zip(want, strength, strict=True)
    ]
    return want, got
