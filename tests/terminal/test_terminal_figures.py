"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from lowbit.report import tables as figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.345, "12.35"),
        (math.inf, "exact"),
        (-math.inf, "no signal"),
        (math.nan, "unknown"),
    ],
)
def test_decibels(value, text) -> None:
    assert figures.decibels(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (3_540_000, "3.5 MB"),
        (2_400_000_000, "2.4 GB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_sizes(value, text) -> None:
    assert figures.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.049, "0.05 s"), (3.21, "3.2 s"), (125.2, "2 min 05 s")]
)
def test_seconds(value, text) -> None:
    assert figures.seconds(value) == text


def test_cosines_and_counts() -> None:
    assert figures.cosine(1.0) == "1"
    assert figures.cosine(0.99912345) == "0.999123"
    assert figures.number(0.000123456) == "0.000123"
    assert figures.counted(1, "node") == "1 node"
    assert figures.counted(0, "bias", "biases") == "0 biases"
