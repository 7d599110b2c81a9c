"""The cheapest choice that keeps the noise within its budget is found, whatever form it has."""

from __future__ import annotations

import itertools
import math

import pytest

from lowbit.search.regions import Choice, RegionSearch, runs_of


def _model(narrow: list[float], wide: list[float] | None = None):
    """A model whose units bring noises that add up; returns what measures its margin."""

    def margin(choice: Choice) -> float:
        noise = 1e-9
        for unit, value in enumerate(narrow):
            if unit in choice.wide and wide is not None:
                noise += wide[unit]
            elif unit not in choice.in_float:
                noise += value
        return -10 * math.log10(noise)

    return margin


def _each(margin):
    return lambda choices: [margin(choice) for choice in choices]


def _found(costs, margin, wanted_db, *, wide_is_enough=None, effort=400):
    search = RegionSearch(costs, _each(margin), margin, wide_is_enough=wide_is_enough)
    search.divide(wanted_db, effort)
    return search.cheapest(wanted_db)


@pytest.mark.parametrize(
    "culprits",
    [set(range(10)), set(range(54, 64)), set(range(20, 30)), {3, 40, 41}, {0}, {63}],
    ids=["front end", "head", "middle", "two places", "first", "last"],
)
def test_the_culprits_are_found_and_nothing_else(culprits: set[int]) -> None:
    noise = [1.0 if unit in culprits else 1e-5 for unit in range(64)]

    found = _found([1 / 64] * 64, _model(noise), 5.0)

    assert found.choice == Choice(in_float=frozenset(culprits))
    assert found.margin_db >= 5.0


def test_what_costs_much_and_disturbs_little_stays_narrow() -> None:
    # The costliest part disturbs most: putting it back first leaves no room for all the others.
    costs, noise = [0.4] + [0.06] * 10, [0.3] + [0.02] * 10

    found = _found(costs, _model(noise), 5.0)

    assert found.choice.in_float == {0}


def test_no_other_choice_is_cheaper() -> None:
    costs = [0.05, 0.3, 0.1, 0.2, 0.05, 0.3]
    noise = [0.2, 0.1, 0.05, 0.3, 0.15, 0.02]
    margin = _model(noise)

    found = _found(costs, margin, 5.0)

    every = itertools.chain.from_iterable(itertools.combinations(range(6), k) for k in range(7))
    enough = [r for r in every if margin(Choice(in_float=frozenset(r))) >= 5.0]
    best = min(sum(costs[i] for i in r) for r in enough)
    # At one price for all, a knapsack is filled but for its last piece.
    assert best <= found.cost <= best + max(costs) / 2


def test_wider_integers_are_taken_where_they_are_enough() -> None:
    narrow, wide = [1.0, 1.0, 1e-4, 1e-4], [1e-4, 0.9, 1e-4, 1e-4]

    found = _found([0.25] * 4, _model(narrow, wide), 10.0, wide_is_enough=lambda: True)

    assert found.choice == Choice(wide=frozenset({0}), in_float=frozenset({1}))


def test_wider_integers_can_be_ruled_out() -> None:
    margin = _model([1.0, 1e-4], [1e-4, 1e-4])
    search = RegionSearch([0.5, 0.5], _each(margin), margin, wide_is_enough=lambda: True)

    assert search.cheapest(10.0).choice == Choice(wide=frozenset({0}))
    assert search.without_wide().cheapest(10.0).choice == Choice(in_float=frozenset({0}))


@pytest.mark.parametrize("bears", [True, False])
def test_whether_integers_are_wide_enough_is_asked_once_and_only_where_it_matters(
    bears: bool,
) -> None:
    margin = _model([1.0, 1.0, 1e-4, 1e-4], [1e-4] * 4)
    asked = []

    def wide_is_enough() -> bool:
        asked.append(bears)
        return bears

    search = RegionSearch([0.25] * 4, _each(margin), margin, wide_is_enough=wide_is_enough)
    search.divide(-10.0, 8)
    assert not asked
    search.divide(10.0, 8)
    found = [search.cheapest(10.0), search.cheapest(20.0)]

    assert asked == [bears]
    assert all(bool(trial.choice.wide) == bears for trial in found)


def test_noise_that_does_not_add_up_is_corrected_for() -> None:
    parts = _model([0.2] * 8)

    def whole(choice: Choice) -> float:
        # Together they disturb four times as much as one by one.
        return parts(choice) - 6.0

    search = RegionSearch([0.125] * 8, _each(parts), whole)

    found = search.cheapest(0.0)

    assert found.margin_db >= 0.0
    assert len(found.choice.in_float) == 7


def test_where_no_part_is_quiet_enough_one_is_left_all_the_same() -> None:
    margin = _model([1.0, 0.7, 0.6, 2.0])
    search = RegionSearch([0.1, 0.5, 0.1, 0.3], _each(margin), margin)

    assert search.cheapest(5.0) is None
    # The costliest of those that are enough, else the quietest.
    assert search.one_part(1.0).choice.in_float == {0, 2, 3}
    assert search.one_part(5.0).choice.in_float == {0, 1, 3}


def test_a_part_that_cannot_be_left_alone_is_passed_over() -> None:
    margin = _model([1.0, 0.7, 0.6, 2.0])
    search = RegionSearch([0.1, 0.5, 0.1, 0.3], _each(margin), margin)
    refused: list[Choice] = []

    while (trial := search.one_part(5.0, refused)) is not None:
        refused.append(trial.choice)

    # From the quietest to the noisiest, each once.
    assert [sorted({0, 1, 2, 3} - c.in_float) for c in refused] == [[2], [1], [0], [3]]


def test_effort_is_counted_in_parts() -> None:
    calls = []

    def margin(choice: Choice) -> float:
        calls.append(choice)
        return _model([1.0] * 64)(choice)

    search = RegionSearch([1.0] * 64, _each(margin), margin)
    before = len(calls)
    search.divide(5.0, 8)

    assert len(calls) - before <= 8


def test_neighbours_are_one_run() -> None:
    assert runs_of(frozenset({5, 1, 2, 9, 3})) == [[1, 2, 3], [5], [9]]


def test_a_cheap_layer_between_costly_ones_is_found() -> None:
    # As a depthwise convolution between pointwise ones, each with its activation.
    block = [(0.05, 0.01), (0.001, 0.01), (0.004, 0.6), (0.001, 0.01)]
    costs, noise = zip(*(block * 16), strict=True)

    found = _found(list(costs), _model(list(noise)), 3.0, effort=64)

    assert found.cost < 0.1
    assert {unit for unit in range(64) if unit % 4 == 2} <= found.choice.in_float


def test_a_part_that_disturbs_more_than_it_showed_does_not_cost_all_others() -> None:
    parts = _model([0.2] * 12)

    def whole(choice: Choice) -> float:
        # Three of them hide what they do to other samples; the cheapest are promoted first.
        hidden = sum(unit not in choice.in_float for unit in range(3))
        return parts(choice) if not hidden else -8.0

    search = RegionSearch([0.01 * (i + 1) for i in range(12)], _each(parts), whole)

    found = search.cheapest(0.0)

    assert found.margin_db >= 0.0
    assert found.choice.in_float <= set(range(8))


def test_what_is_worth_most_of_what_was_measured_is_found() -> None:
    margin = _model([1.0, 0.09, 0.009])
    search = RegionSearch([0.01, 0.01, 0.9], _each(margin), margin)

    assert search.cheapest(5.0).choice.in_float == {0}
    # All in float would be needed, which costs more than is allowed and is not measured.
    search.cheapest(40.0, most_cost=0.5)
    search.cheapest(15.0, most_cost=0.5)
    found = search.best(5.0, lambda trial: 0.01 * trial.margin_db - trial.cost)

    assert found.choice.in_float == {0, 1}
