"""Functions that make samples, here and in other processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from lowbit.data import InputInfo, open_data
from lowbit.errors import ConfigError, DataError

_X = InputInfo("x", np.dtype(np.float32), ("batch", 4))


def made() -> Iterator[np.ndarray]:
    for i in range(5):
        yield np.full(4, i + 1, np.float32)


class Listed:
    """A dataset by number, which counts what it is asked for."""

    asked: list[int] = []  # noqa: RUF012 - counted over all that are made

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> np.ndarray:
        self.asked.append(index)
        return np.full(4, index + 1, np.float32)


@pytest.mark.parametrize("factory", [made, Listed])
def test_a_function_is_called_for_each_pass(factory) -> None:
    data = open_data(factory, [_X])

    for _ in range(2):
        assert [float(feed["x"][0, 0]) for feed in data] == [1, 2, 3, 4, 5]
    assert len(data) == 5
    assert len(open_data(factory, [_X], limit=2)) == 2


@pytest.mark.parametrize("factory", [made, Listed])
def test_other_processes_get_the_function_and_the_numbers(factory) -> None:
    data = open_data(factory, [_X])

    sent = pickle.dumps(data.shard([1, 3]))
    part = pickle.loads(sent)  # noqa: S301 - our own

    assert len(sent) < 1000
    assert [float(feed[0]) for _, feed in part.read([0, 1])] == [2, 4]
    assert part.count() == 2


def test_a_dataset_by_number_is_asked_for_what_is_needed() -> None:
    part = open_data(Listed, [_X]).shard([4])
    Listed.asked.clear()

    list(part.read([0]))

    # The first tells whether samples are batches.
    assert Listed.asked == [0, 4]


def test_a_function_that_makes_nothing_or_takes_a_preprocessing_is_refused() -> None:
    with pytest.raises(DataError, match=r"nothing\(\) gave no sample"):
        list(open_data(nothing, [_X]))
    with pytest.raises(ConfigError, match="samples that a function makes are fed as they are"):
        open_data(made, [_X], preprocessing="imagenet")


def nothing() -> list[np.ndarray]:
    return []
