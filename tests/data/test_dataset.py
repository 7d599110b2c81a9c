from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import ml_dtypes
import numpy as np
import pytest

from lowbit.data.dataset import ZERO_FEEDS_TOLERATED, Data, IndexedSource, Source
from lowbit.data.inputs import InputInfo
from lowbit.errors import DataError


@pytest.mark.parametrize("kind", [Source, IndexedSource])
def test_sources_are_abstract(kind: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        kind()


PAIR = InputInfo("x", np.dtype(np.float32), ("n", 2))


class Feeds(Source):
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


class Indexed(IndexedSource):
    """A source that notes which feeds are read."""

    def __init__(self, feeds: list[object]) -> None:
        self.feeds = feeds
        self.read_numbers: list[int] = []

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        for index in indices:
            self.read_numbers.append(index)
            yield f"sample {index}", self.feeds[index]

    def count(self) -> int:
        return len(self.feeds)

    def describe(self) -> str:
        return "some feeds"


def pair_row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_fingerprint_costs_no_pass_after_a_full_one() -> None:
    source = Feeds([pair_row(1, 2), pair_row(3, 4)])
    data = Data(source, [PAIR])

    list(data)
    first = data.fingerprint()

    assert source.passes == 1
    assert len(first) == 16
    assert Data(Feeds([pair_row(1, 2), pair_row(3, 4)]), [PAIR]).fingerprint() == first


def test_fingerprint_makes_its_own_pass_once() -> None:
    source = Feeds([pair_row(1, 2), pair_row(3, 4)])
    data = Data(source, [PAIR])

    next(iter(data))
    assert data.fingerprint() == data.fingerprint()

    assert source.passes == 2


def test_fingerprint_reads_only_what_was_not_read_before() -> None:
    feeds: list[object] = [pair_row(k, 1) for k in range(6)]
    source = Indexed(feeds)
    data = Data(source, [PAIR])

    list(data.select([1, 4]))
    found = data.fingerprint()

    assert source.read_numbers == [1, 4, 0, 2, 3, 5]
    assert found == Data(Feeds(feeds), [PAIR]).fingerprint()


@pytest.mark.parametrize(
    "feeds",
    [
        [pair_row(3, 4), pair_row(1, 2)],
        [pair_row(1, 2)],
        [pair_row(1, 2), pair_row(3, 5)],
        [np.concatenate([pair_row(1, 2), pair_row(3, 4)])],
    ],
)
def test_fingerprint_depends_on_order_number_values_and_shapes(feeds: list[object]) -> None:
    other = Data(Feeds([pair_row(1, 2), pair_row(3, 4)]), [PAIR]).fingerprint()

    assert Data(Feeds(feeds), [PAIR]).fingerprint() != other


def test_fingerprint_depends_on_name_and_type() -> None:
    prints = {
        Data(Feeds([pair_row(1, 2)]), [InputInfo(name, np.dtype(dtype), None)]).fingerprint()
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

    assert len(Data(Feeds([feed]), inputs).fingerprint()) == 16


def test_length_is_read_only_when_the_source_cannot_tell() -> None:
    known, unknown = Feeds([pair_row(1, 2)] * 3), Feeds([pair_row(1, 2)] * 3, knows_count=False)

    assert len(Data(known, [PAIR])) == 3
    assert known.passes == 0
    data = Data(unknown, [PAIR])
    assert [len(data), len(data)] == [3, 3]
    assert unknown.passes == 1


def test_data_that_is_all_zero_is_refused_after_the_pass() -> None:
    with pytest.raises(DataError, match=r"all values of 2 samples are 0 \(some feeds\)"):
        list(Data(Feeds([pair_row(0, 0)] * 2), [PAIR]))


def test_data_that_stays_zero_is_refused_early() -> None:
    seen = []

    with pytest.raises(DataError, match=f"{ZERO_FEEDS_TOLERATED} samples are 0"):
        seen.extend(Data(Feeds([pair_row(0, 0)] * 1000), [PAIR]))

    assert len(seen) < ZERO_FEEDS_TOLERATED


def test_some_zero_feeds_are_fine() -> None:
    assert len(list(Data(Feeds([pair_row(0, 0)] * 15 + [pair_row(0, 1)]), [PAIR]))) == 16


def test_zero_ids_without_any_float_input_are_fine() -> None:
    ids = InputInfo("ids", np.dtype(np.int64), None)

    assert len(list(Data(Feeds([np.zeros((1, 3), np.int64)]), [ids]))) == 1


def test_zero_cache_beside_real_ids_is_fine() -> None:
    inputs = [
        InputInfo("ids", np.dtype(np.int64), None),
        InputInfo("past", np.dtype(np.float32), None),
    ]
    feed = {"ids": np.array([[5, 7]]), "past": np.zeros((1, 4), np.float32)}

    assert len(list(Data(Feeds([feed]), inputs))) == 1


def test_bad_feed_is_found_in_every_pass() -> None:
    data = Data(Feeds([pair_row(1, 2), pair_row(1, np.nan)]), [PAIR])

    for _ in range(2):
        with pytest.raises(DataError, match="sample 1, input 'x': 1 of 2"):
            list(data)


def test_says_whether_it_is_random() -> None:
    assert Data(Feeds([]), [PAIR], is_random=True).is_random
    assert not Data(Feeds([]), [PAIR]).is_random


@pytest.mark.parametrize("kind", [Feeds, Indexed])
def test_some_feeds_can_be_selected(kind: Callable[[list[object]], Source]) -> None:
    data = Data(kind([pair_row(k, 1) for k in range(6)]), [PAIR])

    assert [feed["x"][0, 0] for feed in data.select([0, 2, 5])] == [0, 2, 5]
    assert list(data.select([])) == []


def test_selecting_reads_no_other_feed_of_an_indexed_source() -> None:
    source = Indexed([pair_row(k, 1) for k in range(6)])

    list(Data(source, [PAIR]).select([1, 4]))

    assert source.read_numbers == [1, 4]


def test_an_indexed_source_is_gone_through_in_order() -> None:
    source = Indexed([pair_row(k, 1) for k in range(3)])

    assert [feed["x"][0, 0] for feed in Data(source, [PAIR])] == [0, 1, 2]
    assert source.read_numbers == [0, 1, 2]


def test_selected_feeds_are_checked_under_their_own_number() -> None:
    data = Data(Indexed([pair_row(1, 2), pair_row(1, np.nan)]), [PAIR])

    with pytest.raises(DataError, match="sample 1, input 'x': 1 of 2"):
        list(data.select([1]))


def test_selected_feeds_that_stay_zero_are_refused() -> None:
    data = Data(Indexed([pair_row(0, 0)] * 40), [PAIR])

    with pytest.raises(DataError, match=f"all values of {ZERO_FEEDS_TOLERATED} samples are 0"):
        list(data.select(range(20)))


def test_a_feed_read_twice_counts_once_among_the_zero_ones() -> None:
    data = Data(Indexed([pair_row(0, 0)] * 8 + [pair_row(1, 1)]), [PAIR])

    for _ in range(3):
        assert len(list(data.select(range(8)))) == 8
    assert len(list(data)) == 9


def test_names_are_those_of_the_source() -> None:
    source = Feeds([pair_row(1, 2)])
    assert Data(source, [PAIR]).names == ()

    source.names = ("a.png",)
    assert Data(source, [PAIR]).names == ("a.png",)
