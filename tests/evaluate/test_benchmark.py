"""Models run in turn; medians and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.small_models import small_cnn, small_feeds

from lowbit.errors import ConfigError
from lowbit.evaluate.benchmark import benchmark, median_interval
from lowbit.graph import io


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    draws = np.random.default_rng(3).exponential(size=(4000, 50))
    found = [median_interval(list(row)) for row in draws]

    inside = np.mean([low <= np.log(2) <= high for _, low, high in found])

    assert [m for m, _, _ in found] == pytest.approx(list(np.median(draws, axis=1)))
    # An interval between values of the sample is a little too wide rather than too narrow.
    assert 0.94 < inside < 0.99


def test_of_one_run_nothing_is_known_but_itself() -> None:
    assert median_interval([3.0]) == (3.0, 3.0, 3.0)


def test_every_model_is_run_as_often_as_asked() -> None:
    models = {"a": io.load(small_cnn()), "b": io.load(small_cnn())}
    told = []

    rows = benchmark(models, small_feeds(1)[0], runs=6, threads=1, progress=told.append)

    assert [(row.model, row.runs) for row in rows] == [("a", 6), ("b", 6)]
    assert told == [1, 2, 3, 4, 5, 6]
    assert (rows[0].ratio, rows[0].ratio_low, rows[0].ratio_high) == (1, 1, 1)


def test_models_of_other_inputs_are_refused() -> None:
    with pytest.raises(ConfigError, match="the sample is for other"):
        benchmark({"a": io.load(small_cnn())}, {"other": np.zeros(1)})
    with pytest.raises(ConfigError, match="at least one"):
        benchmark({}, {})
