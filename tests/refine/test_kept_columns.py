"""Errors from columns that were kept, and from those that were summed up, against every column."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.refine import kept_columns
from lowbit.refine.kept_columns import KeptColumns

_GROUPS, _OUTPUTS, _DEPTH = 2, 3, 5


def _columns(count: int = 90) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(2, 1, size=(_GROUPS, _DEPTH, count)).astype(np.float32)
    y = random.normal(size=(_GROUPS, _OUTPUTS, count)).astype(np.float32)
    return x, y, random.uniform(0.5, 2, size=count).astype(np.float32)


def _kept(x, y, importance, parts: int = 3) -> KeptColumns:
    found = KeptColumns(_GROUPS, _OUTPUTS, _DEPTH, relative=importance is not None)
    for at in np.split(np.arange(x.shape[2]), parts):
        found.add(x[:, :, at], y[:, :, at], None if importance is None else importance[at])
    return found


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("few", [1000, 70, 10])  # all are kept, some, none
def test_errors_are_those_of_every_column(monkeypatch, relative: bool, few: int) -> None:
    monkeypatch.setattr(kept_columns, "_FEW", few)
    x, y, importance = _columns()
    random = np.random.default_rng(1)
    change = random.normal(size=(_GROUPS, _OUTPUTS, _DEPTH)).astype(np.float32)
    offset = random.normal(size=(_GROUPS, _OUTPUTS))
    kept = _kept(x, y, importance if relative else None)

    error = kept.error_sum()
    for rows in (slice(0, 2), slice(2, None)):  # some outputs at a time
        error.add(rows, change[:, rows], offset[:, rows])

    rest = y.astype(np.float64) - change @ x - offset[:, :, None]
    rest = rest * importance if relative else rest
    assert kept.columns == 90
    assert error.mean == pytest.approx(np.square(rest).mean(), rel=1e-4)
    for found, expected in zip(kept.totals, (x, y), strict=True):
        np.testing.assert_allclose(found, expected.sum(axis=2), rtol=1e-5, atol=1e-4)


def test_memory_does_not_grow_with_columns(monkeypatch) -> None:
    monkeypatch.setattr(kept_columns, "_FEW", 20)
    x, y, _ = _columns(900)
    kept = _kept(x, y, None, parts=90)
    assert sum(columns.x.shape[2] for columns in kept._kept) <= 20


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("large", [np.float32(1e21), np.float32(np.nan)])
def test_numbers_without_finite_squares_are_told(large) -> None:
    x, y, _ = _columns()
    assert _kept(x, y, None).is_finite
    assert not _kept(large * x, y, None).is_finite
    assert not _kept(x, large * y, None).is_finite
