"""Moments and errors from sums of columns are those of the columns themselves."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.refine import column_sums
from lowbit.refine.column_sums import ColumnSums

GROUPS, OUTPUTS, DEPTH, COLUMNS = 2, 3, 4, 50


def _columns(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(1, 1, (GROUPS, DEPTH, COLUMNS)).astype(np.float32)
    return x, random.normal(2, 1, (GROUPS, OUTPUTS, COLUMNS)).astype(np.float32)


def _importance(seed: int, *, relative: bool) -> np.ndarray | None:
    if not relative:
        return None
    return np.random.default_rng(seed).uniform(0.5, 2, COLUMNS).astype(np.float32)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_moments_are_those_of_all_columns(centred: bool, relative: bool) -> None:
    x, y = _columns(0)
    weight = _importance(1, relative=relative)
    sums = ColumnSums(GROUPS, OUTPUTS, DEPTH, relative=relative)
    for part in (slice(0, 20), slice(20, None)):
        sums.add(x[..., part], y[..., part], None if weight is None else weight[part])

    found = sums.moments(centred=centred)

    if centred:
        x, y = x - x.mean(axis=2, keepdims=True), y - y.mean(axis=2, keepdims=True)
    counted = np.ones(COLUMNS) if weight is None else np.square(weight)
    inputs = np.einsum("gin,gjn,n->gij", x, x, counted) / COLUMNS
    products = np.einsum("gon,gin,n->goi", y, x, counted) / COLUMNS
    np.testing.assert_allclose(found.inputs, inputs, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(found.outputs, products, rtol=2e-4, atol=2e-4)


def test_products_are_added_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _columns(0)
    whole, parts = (ColumnSums(GROUPS, OUTPUTS, DEPTH) for _ in range(2))
    whole.add(x, y)

    monkeypatch.setattr(column_sums, "_PRODUCTS_AT_ONCE", 2 * DEPTH + 1)
    parts.add(x, y)

    np.testing.assert_allclose(parts.inputs, whole.inputs, rtol=1e-6)
    np.testing.assert_allclose(
        parts.output_moments(centred=True), whole.output_moments(centred=True), rtol=1e-5
    )


@pytest.mark.parametrize("relative", [False, True])
def test_errors_are_those_of_every_column(relative: bool) -> None:
    x, y = _columns(2)
    weight = _importance(3, relative=relative)
    random = np.random.default_rng(4)
    change = random.normal(size=(GROUPS, OUTPUTS, DEPTH)).astype(np.float32)
    offset = random.normal(size=(GROUPS, OUTPUTS))
    sums = ColumnSums(GROUPS, OUTPUTS, DEPTH, relative=relative)
    sums.add(x, y, weight)

    found = sums.error(change, offset)

    missed = change @ x + offset[:, :, None] - y
    counted = missed if weight is None else missed * weight
    assert found == pytest.approx(float(np.square(counted).mean()), rel=1e-4)
