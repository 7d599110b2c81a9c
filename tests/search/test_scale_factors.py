"""Scales that the outputs are sensitive to are found among many, and only better ones are taken."""

from __future__ import annotations

import pytest

from lowbit.search.scale_factors import POWERS_OF_TWO, Factors, find_factors


class _Model:
    """Tensors that bring noise of their own, each least at a factor of its own."""

    def __init__(self, best: dict[str, float], noise: dict[str, float]) -> None:
        self._best, self._noise = best, noise
        self.measured = 0

    def __call__(self, choices: list[Factors]) -> list[float]:
        self.measured += len(choices)
        return [sum(self._of(name, factor) for name, factor in c.items()) for c in choices]

    def _of(self, name: str, factor: float) -> float:
        off = max(factor / self._best.get(name, 1.0), self._best.get(name, 1.0) / factor)
        return self._noise.get(name, 0.01) * off


def _names(count: int) -> list[list[str]]:
    return [[f"t{i}"] for i in range(count)]


@pytest.mark.parametrize("count", [1, 5, 60, 400])
def test_scales_that_are_too_coarse_or_too_fine_are_found(count: int) -> None:
    last = f"t{count - 1}"
    model = _Model({"t0": 0.5, last: 2.0}, {"t0": 8.0, last: 4.0})

    found = find_factors(_names(count), model, POWERS_OF_TWO)

    assert found == ({last: 2.0, "t0": 0.5} if count > 1 else {"t0": 2.0})
    assert model.measured <= 48


def test_noisy_tensors_whose_scale_is_the_best_keep_it() -> None:
    assert find_factors(_names(20), _Model({}, {"t3": 9.0, "t7": 5.0}), POWERS_OF_TWO) == {}


def test_where_nothing_stands_out_nothing_is_divided() -> None:
    model = _Model({"t3": 0.5}, {})

    assert find_factors(_names(80), model, POWERS_OF_TWO) == {}
    assert model.measured == 8


def test_tensors_that_share_a_scale_change_together() -> None:
    groups = [["a", "b"], ["c"]]

    found = find_factors(groups, _Model({"a": 0.5, "b": 0.5}, {"a": 5.0, "b": 1.0}), POWERS_OF_TWO)

    assert found == {"a": 0.5, "b": 0.5}
