from __future__ import annotations

import itertools

import pytest

from lowbit.numerics.spacing import even_bounds, evenly_inside, evenly_spaced


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [(10, 5, [0, 2, 4, 6, 8]), (7, 3, [0, 2, 4]), (3, 8, [0, 1, 2]), (5, 0, []), (0, 3, [])],
)
def test_evenly_spaced_indices_begin_with_the_first(total: int, count: int, expected) -> None:
    assert evenly_spaced(total, count) == expected


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [(101, 3, [25, 50, 75]), (9, 1, [4]), (5, 0, []), (0, 2, []), (1, 1, [0])],
)
def test_indices_inside_are_away_from_both_ends(total: int, count: int, expected) -> None:
    assert evenly_inside(total, count) == expected


@pytest.mark.parametrize(("length", "parts"), [(10, 3), (7, 7), (4, 9), (100, 8), (1, 2)])
def test_runs_cover_everything_and_differ_by_one_at_most(length: int, parts: int) -> None:
    bounds = even_bounds(length, parts)
    sizes = [b - a for a, b in itertools.pairwise(bounds)]

    assert (bounds[0], bounds[-1], len(sizes)) == (0, length, min(parts, length))
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_nothing_has_no_runs() -> None:
    assert even_bounds(0, 4) == []
