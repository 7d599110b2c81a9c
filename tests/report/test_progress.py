"""One line over the whole run: what is shown, and how good the estimate of the rest is."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lowbit.report.progress import TYPICAL, Estimate, describe_remaining, show_stages


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(estimate: Estimate, clock: Clock, stages: list[tuple[str, float, int]]) -> list[tuple]:
    """Go through stages of so many seconds in so many parts; return time and estimate at each."""
    seen = []
    for name, seconds, parts in stages:
        for done in range(parts + 1):
            estimate.tell(name, done, parts)
            seen.append((clock.now, estimate.fraction, estimate.remaining))
            clock.now += seconds / parts if done < parts else 0
    return seen


def test_a_run_that_is_typical_is_foretold_exactly() -> None:
    clock = Clock()
    stages = ["load", "calibrate", "refine", "verify"]
    estimate = Estimate(stages, clock)

    seen = run(estimate, clock, [(name, 2 * TYPICAL[name], 4) for name in stages])

    whole = 2 * sum(TYPICAL[name] for name in stages)
    for now, fraction, remaining in seen:
        assert fraction == pytest.approx(now / whole)
        assert remaining is None or remaining == pytest.approx(whole - now)


def test_the_pace_of_the_running_stage_is_its_own() -> None:
    clock = Clock()
    estimate = Estimate(["calibrate", "refine"], clock)

    # A hundred times as slow as calibration would let expect.
    seen = run(estimate, clock, [("calibrate", 12, 4), ("refine", 6000, 10)])

    now, _, remaining = seen[-3]
    assert now == pytest.approx(12 + 0.8 * 6000)
    assert remaining == pytest.approx(0.2 * 6000)


@given(
    st.lists(
        st.tuples(st.sampled_from([*TYPICAL, "new stage"]), st.floats(0.01, 50), st.integers(1, 5)),
        max_size=12,
    )
)
def test_whatever_comes_the_estimate_never_goes_back_nor_beyond_its_ends(stages) -> None:
    clock = Clock()
    estimate = Estimate(TYPICAL, clock)
    estimate.tell("load", 0, None)

    seen = run(estimate, clock, stages)

    fractions = [fraction for _, fraction, _ in seen]
    if all(name in TYPICAL for name, _, _ in stages):
        assert fractions == sorted(fractions)
    assert all(0 <= fraction <= 1 for fraction in fractions)
    assert all(left is None or left >= -1e-6 for _, _, left in seen)


def test_before_anything_is_done_nothing_is_foretold() -> None:
    clock = Clock()
    estimate = Estimate(["load", "calibrate"], clock)
    clock.now = 5.0

    estimate.tell("load", 0, None)

    assert (estimate.fraction, estimate.remaining) == (0.0, None)
    assert describe_remaining(None) == ""


@pytest.mark.parametrize(
    ("left", "text"),
    [(0.2, "about 5 s left"), (42, "about 40 s left"), (200, "about 3 min left")],
)
def test_the_rest_is_told_in_round_figures(left, text) -> None:
    assert describe_remaining(left) == text


def test_a_terminal_sees_stage_and_count() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)

    with show_stages(quiet=False, console=console) as tell:
        tell("load", 0, None)
        tell("calibrate", 3, 8)

    text = console.file.getvalue()
    assert "calibrate" in text
    assert "3/8" in text


def test_quiet_and_pipes_see_nothing(capsys) -> None:
    console = Console(file=io.StringIO(), force_terminal=True)

    with show_stages(quiet=True, console=console) as tell:
        tell("load", 0, None)
    with show_stages(quiet=False) as tell:
        tell("load", 0, None)

    assert console.file.getvalue() == ""
    assert capsys.readouterr() == ("", "")
