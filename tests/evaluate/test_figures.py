"""Levels begin at their limits, and the error of a figure decides what is certain."""

from __future__ import annotations

import math

import pytest

from lowbit.evaluate.figures import FIGURES, GOALS, LEVELS


@pytest.mark.parametrize("kind", FIGURES)
def test_levels_begin_at_their_limits_and_what_is_no_number_is_ruined(kind: str) -> None:
    figure = FIGURES[kind]
    worse = -1e-6 if figure.higher_is_better else 1e-6

    assert [figure.level(limit) for limit in figure.limits] == list(LEVELS[:3])
    assert [figure.level(limit + worse) for limit in figure.limits] == list(LEVELS[1:])
    assert figure.level(math.nan) == "ruined"
    assert figure.margin_db(figure.limits[1]) == pytest.approx(0, abs=1e-9)
    assert figure.margin_db(figure.limits[0]) > 0 > figure.margin_db(figure.limits[2])


def test_only_what_is_ruined_for_certain_is_called_so() -> None:
    figure = GOALS["sqnr"]

    assert figure.sure_level(5.0, 1.0) == "ruined"
    assert figure.sure_level(5.0, 3.0) == "poor"
    assert figure.sure_level(5.0, math.nan) == "ruined"  # of a single sample nothing else is known
    assert figure.range(14.0, 2.0) == ("poor", "usable")
    assert GOALS["kl"].range(0.9, 0.4) == ("ruined", "poor")
    assert GOALS["kl"].sure_level(1.1, 0.2) == "poor"


def test_an_error_in_decibels_is_what_a_worse_figure_loses() -> None:
    assert GOALS["sqnr"].error_db(20.0, 1.5) == pytest.approx(1.5)
    # Twice the divergence, and twice the distance from one, are 3 dB.
    assert GOALS["kl"].error_db(0.1, 0.1) == pytest.approx(3.01, abs=0.01)
    assert GOALS["cosine"].error_db(0.98, 0.02) == pytest.approx(3.01, abs=0.01)
    assert GOALS["kl"].error_db(0.1, math.nan) == 0
