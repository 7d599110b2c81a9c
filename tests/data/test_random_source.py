from __future__ import annotations

import numpy as np
import pytest

from lowbit.data import InputInfo, open_data
from lowbit.errors import DataError

F = InputInfo("x", np.dtype(np.float32), ("batch", 3, 50))
IDS = InputInfo("ids", np.dtype(np.int64), (2, 40))


def test_feeds_are_uniform_and_say_that_they_are_random() -> None:
    data = open_data("random", [F, IDS])
    feeds = list(data)

    assert data.is_random
    assert len(data) == len(feeds) == 8
    assert "random" in data.description
    x = np.stack([feed["x"] for feed in feeds])
    assert x.shape == (8, 1, 3, 50)
    assert 0 <= x.min() < 0.05
    assert 0.95 < x.max() < 1
    assert abs(x.mean() - 0.5) < 0.05
    assert np.unique([feed["ids"] for feed in feeds]).tolist() == [0, 1]
    assert feeds[0]["ids"].shape == (2, 40)


def test_seed_decides_and_passes_are_equal() -> None:
    data = open_data("random", [F], limit=3, seed=5)

    np.testing.assert_array_equal([f["x"] for f in data], [f["x"] for f in data])
    assert data.fingerprint() == open_data("random", [F], limit=3, seed=5).fingerprint()
    assert data.fingerprint() != open_data("random", [F], limit=3, seed=6).fingerprint()
    assert len(data) == 3


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.bool_, np.uint8])
def test_every_type_can_be_made(dtype: type) -> None:
    (feed,) = open_data("random", [InputInfo("x", np.dtype(dtype), (1, 20))], limit=1)

    assert feed["x"].dtype == dtype


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, "seq", None), r"input 'x' of shape \[1, seq, \?\] leaves open axis 1 \(seq\), axis 2"),
        (None, r"shape of input 'x', which is not known"),
    ],
)
def test_open_sizes_are_named(shape: tuple[int | str | None, ...] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data("random", [InputInfo("x", np.dtype(np.float32), shape)])


def test_scalar_input_gets_a_scalar() -> None:
    (feed,) = open_data("random", [InputInfo("x", np.dtype(np.float32), ())], limit=1)

    assert feed["x"].shape == ()
