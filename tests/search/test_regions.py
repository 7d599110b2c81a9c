"""The smallest region is found whatever its form, and cheap parts are not given away."""

from __future__ import annotations

import pytest

from lowbit.search.regions import runs_of, shrink_region


def _margin(culprits: set[int]):
    """A model that is good only if all culprits are promoted; others lose a little."""
    return lambda region: 20.0 if culprits <= region else -10.0


@pytest.mark.parametrize(
    "culprits",
    [set(range(10)), set(range(54, 64)), set(range(20, 30)), {3, 40, 41}, {0}, {63}],
    ids=["front end", "head", "middle", "two places", "first", "last"],
)
def test_the_culprits_are_found_and_nothing_else(culprits: set[int]) -> None:
    found = shrink_region([1 / 64] * 64, _margin(culprits), 5.0, effort=200)

    assert found[-1].region == culprits
    assert all(trial.margin_db >= 5.0 for trial in found)


def test_what_costs_most_is_put_back_first() -> None:
    # Each unit in the narrow format takes 2 dB; only five may have it.
    costs = [0.001] * 8 + [0.2] * 4
    tried = []

    def margin(region: frozenset[int]) -> float:
        tried.append(region)
        return 15.0 - 2.0 * (12 - len(region))

    found = shrink_region(costs, margin, 5.0, effort=100)

    assert not found[-1].region & {8, 9, 10, 11}


def test_what_is_cheap_is_put_back_only_if_that_loses_little() -> None:
    costs = [0.0001] * 16 + [1.0]

    def margin(region: frozenset[int]) -> float:
        return 12.0 if 3 in region else 6.0

    found = shrink_region(costs, margin, 5.0, effort=100)

    assert 3 in found[-1].region
    assert 16 not in found[-1].region


def test_effort_is_counted_in_candidates() -> None:
    calls = []

    def margin(region: frozenset[int]) -> float:
        calls.append(region)
        return _margin({5})(region)

    shrink_region([1.0] * 64, margin, 5.0, effort=7)

    assert len(calls) == 1 + 7


def test_neighbours_are_one_run() -> None:
    assert runs_of(frozenset({5, 1, 2, 9, 3})) == [[1, 2, 3], [5], [9]]
