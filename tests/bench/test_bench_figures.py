"""Statistics of runs: ratios within rounds, medians over them."""

from __future__ import annotations

from helpers.records import floor, record

from bench import figures
from bench.jobs import JOBS


def test_a_ratio_is_taken_within_its_round_before_the_median() -> None:
    """The machine slows down fourfold in the second round, for both: the ratio stays 10."""
    runs = [
        *(record("xint8", "lowbit", turn, wall) for turn, wall in enumerate((1.0, 4.0, 2.0))),
        *(record("xint8", "quark", turn, wall) for turn, wall in enumerate((10.0, 40.0, 24.0))),
    ]

    assert figures.relative_to(runs, "m", JOBS["xint8"], "quark", "wall") == 10.0


def test_rounds_that_one_side_lacks_do_not_count() -> None:
    mine = [record("xint8", "lowbit", 0, 1.0), record("xint8", "lowbit", 1, 1.0)]
    theirs = [record("xint8", "quark", 1, 7.0), record("xint8", "quark", 2, 99.0)]

    assert figures.median_ratio(theirs, mine, "wall") == 7.0
    assert figures.median_ratio(theirs[1:], mine, "wall") is None


def test_a_native_preset_stands_beside_the_job_it_is_like() -> None:
    runs = [record("native-xint8", "lowbit", wall=2.0), record("xint8", "quark", wall=30.0)]

    assert figures.relative_to(runs, "m", JOBS["native-xint8"], "quark", "wall") == 15.0


def test_runs_that_failed_give_no_figures_but_a_reason() -> None:
    runs = [record("bf16", "quark", error="no compiler")]

    assert figures.of(runs, "m", "bf16", "quark") == []
    assert figures.failure(runs, "m", "bf16", "quark") == "no compiler"
    assert figures.least([], "wall") is None


def test_calibration_is_counted_in_float_passes_of_its_round() -> None:
    runs = [
        floor(0, 0.5),
        floor(1, 2.0),
        record("xint8", "lowbit", 0, phases={"calibrate": 1.5}),
        record("xint8", "lowbit", 1, phases={"calibrate": 6.0}),
    ]

    assert figures.calibration_ratio(runs, "m", "xint8") == 3.0
    assert figures.whole_ratio(runs[:3], "m", "xint8", "lowbit") == 2.0


def test_memory_is_counted_above_that_of_the_float_session() -> None:
    runs = [floor(peak_mb=90.0), record("xint8", "lowbit", peak_mb=130.0)]

    assert figures.memory_above_float(runs, "m", "xint8") == 40.0
    assert figures.memory_above_float(runs, "m", "bf16") is None
