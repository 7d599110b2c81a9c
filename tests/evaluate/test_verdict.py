"""The verdict in words: figures as far as they are sure, and what leaves them in doubt."""

from __future__ import annotations

import math
import re

import msgspec
import pytest
from helpers.verdicts import noisy_maps, rows_of, sparse_maps, verdict_of


def test_samples_where_an_output_has_another_size_are_told() -> None:
    want = rows_of(5, 4, 6)
    got = [array[:3] if index < 2 else array for index, array in enumerate(want)]

    verdict = verdict_of("values", want, got)

    assert (verdict.level, verdict.samples, verdict.outputs[0].samples) == ("good", 5, 3)
    (doubt,) = verdict.doubts_of_sizes()
    assert doubt.startswith("y has another size than the float model's in 2 of 5 samples")
    assert not verdict_of("values", want, want).doubts_of_sizes()


@pytest.mark.parametrize(
    ("value", "error", "unit", "words"),
    [
        (0.03729, 0.00952, "", "0.0373 ± 0.0095"),
        (0.99993, 7.08e-06, "", "0.999930 ± 0.000007"),
        (0.99853, 0.000119, "", "0.99853 ± 0.00012"),
        (1.5, 0.31, "", "1.50 ± 0.31"),
        (412.0, 31.0, "", "412 ± 31"),
        (0.123456, math.nan, "", "0.123"),
        (1.0, 0.0, "", "1"),
        (18.63, 1.04, "dB", "18.6 ± 1.0 dB"),
        (18.63, math.nan, "dB", "18.6 dB"),
    ],
)
def test_a_figure_is_told_as_far_as_its_error_leaves_it_sure(value, error, unit, words) -> None:
    (row,) = verdict_of("values", rows_of(1, 1, 64), rows_of(1, 1, 64, seed=1)).outputs
    row = msgspec.structs.replace(row, value=value, standard_error=error, unit=unit)

    assert row.describe() == f"{row.output}: {row.figure} {words}"


@pytest.mark.parametrize(
    ("noise", "loud", "level", "doubt"),
    [
        (0.002, 0.12, "poor", "whether it is good or ruined"),  # 5 dB, but 30 without one sample
        (0.009, 0.025, "poor", "whether it is usable or poor"),
        (0.018, 0.06, "poor", "whether it is poor or ruined"),
        (0.2, 0.2, "ruined", ""),
        (0.002, 0.002, "good", ""),
    ],
)
def test_what_few_samples_leave_open_is_said(
    noise: float, loud: float, level: str, doubt: str
) -> None:
    verdict = verdict_of("scores", *sparse_maps(12, noise, loud))

    assert verdict.level == level
    assert (doubt in verdict.describe()) if doubt else not verdict.doubt
    # A comparison has no --verify.
    compared = msgspec.structs.replace(verdict, held_out=None).doubt
    assert compared == verdict.doubt.replace("--verify more", "give more")


@pytest.mark.parametrize(
    ("ratios_db", "words"),
    [
        # A detector's figure from two samples, where that of eight others was 8.4 dB.
        ((17.2, 18.0), r"± 5\.\d dB \(95 %\), on 2 held-out samples; so few samples leave open"),
        (
            (60.0, 60.5),
            r"± 3\.\d dB \(95 %\), on 2 held-out samples; so few samples say little \(--",
        ),
        ((60.0,), r"60\.0 dB, on 1 held-out sample; so few samples say little \(--verify more\)$"),
        ((17.4, 17.8) * 16, r"17\.6 ± 0\.0 dB, on 32 held-out samples$"),
    ],
)
def test_a_few_samples_are_said_to_say_little(ratios_db: tuple[float, ...], words: str) -> None:
    verdict = verdict_of("values", *noisy_maps(*ratios_db))

    assert re.search(words, verdict.describe())
    assert bool(verdict.doubt) is (len(ratios_db) < 8)
