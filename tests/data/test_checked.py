from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from lowbit.data import InputInfo
from lowbit.data.dataset import ZERO_FEEDS_TOLERATED, CheckedData
from lowbit.errors import DataError

X = InputInfo("x", np.dtype(np.float32), ("n", 2))


class Feeds:
    """A source that counts how often it is gone through."""

    def __init__(self, feeds: list[object], *, knows_count: bool = True) -> None:
        self.feeds = feeds
        self.knows_count = knows_count
        self.passes = 0

    def __iter__(self) -> Iterator[tuple[str, object]]:
        self.passes += 1
        yield from ((f"sample {index}", feed) for index, feed in enumerate(self.feeds))

    def count(self) -> int | None:
        return len(self.feeds) if self.knows_count else None

    def describe(self) -> str:
        return "some feeds"


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_fingerprint_costs_no_pass_after_a_full_one() -> None:
    source = Feeds([row(1, 2), row(3, 4)])
    data = CheckedData(source, [X])

    list(data)
    first = data.fingerprint()

    assert source.passes == 1
    assert len(first) == 16
    assert CheckedData(Feeds([row(1, 2), row(3, 4)]), [X]).fingerprint() == first


def test_fingerprint_makes_its_own_pass_once() -> None:
    source = Feeds([row(1, 2)])
    data = CheckedData(source, [X])

    next(iter(data))
    assert data.fingerprint() == data.fingerprint()

    assert source.passes == 2


@pytest.mark.parametrize(
    "feeds",
    [
        [row(3, 4), row(1, 2)],
        [row(1, 2)],
        [row(1, 2), row(3, 5)],
        [np.concatenate([row(1, 2), row(3, 4)])],
    ],
)
def test_fingerprint_depends_on_order_number_values_and_shapes(feeds: list[object]) -> None:
    other = CheckedData(Feeds([row(1, 2), row(3, 4)]), [X]).fingerprint()

    assert CheckedData(Feeds(feeds), [X]).fingerprint() != other


def test_fingerprint_depends_on_name_and_type() -> None:
    prints = {
        CheckedData(Feeds([row(1, 2)]), [InputInfo(name, np.dtype(dtype), None)]).fingerprint()
        for name in ("x", "y")
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
    }

    assert len(prints) == 6


def test_scalars_and_empty_arrays_can_be_fingerprinted() -> None:
    inputs = [
        InputInfo("s", np.dtype(np.float32), ()),
        InputInfo("past", np.dtype(np.float32), None),
    ]
    feed = {"s": np.float32(1), "past": np.zeros((1, 0, 4), np.float32)}

    assert len(CheckedData(Feeds([feed]), inputs).fingerprint()) == 16


def test_length_is_read_only_when_the_source_cannot_tell() -> None:
    known, unknown = Feeds([row(1, 2)] * 3), Feeds([row(1, 2)] * 3, knows_count=False)

    assert len(CheckedData(known, [X])) == 3
    assert known.passes == 0
    data = CheckedData(unknown, [X])
    assert [len(data), len(data)] == [3, 3]
    assert unknown.passes == 1


def test_data_that_is_all_zero_is_refused_after_the_pass() -> None:
    with pytest.raises(DataError, match=r"all values of 2 feeds are 0 \(some feeds\)"):
        list(CheckedData(Feeds([row(0, 0)] * 2), [X]))


def test_data_that_stays_zero_is_refused_early() -> None:
    seen = []

    with pytest.raises(DataError, match=f"{ZERO_FEEDS_TOLERATED} feeds are 0"):
        seen.extend(CheckedData(Feeds([row(0, 0)] * 1000), [X]))

    assert len(seen) < ZERO_FEEDS_TOLERATED


def test_some_zero_feeds_are_fine() -> None:
    assert len(list(CheckedData(Feeds([row(0, 0)] * 15 + [row(0, 1)]), [X]))) == 16


def test_zero_ids_without_any_float_input_are_fine() -> None:
    ids = InputInfo("ids", np.dtype(np.int64), None)

    assert len(list(CheckedData(Feeds([np.zeros((1, 3), np.int64)]), [ids]))) == 1


def test_zero_cache_beside_real_ids_is_fine() -> None:
    inputs = [
        InputInfo("ids", np.dtype(np.int64), None),
        InputInfo("past", np.dtype(np.float32), None),
    ]
    feed = {"ids": np.array([[5, 7]]), "past": np.zeros((1, 4), np.float32)}

    assert len(list(CheckedData(Feeds([feed]), inputs))) == 1


def test_bad_feed_is_found_in_every_pass() -> None:
    data = CheckedData(Feeds([row(1, 2), row(1, np.nan)]), [X])

    for _ in range(2):
        with pytest.raises(DataError, match="sample 1, input 'x': 1 of 2"):
            list(data)


def test_says_whether_it_is_random() -> None:
    assert CheckedData(Feeds([]), [X], is_random=True).is_random
    assert not CheckedData(Feeds([]), [X]).is_random
