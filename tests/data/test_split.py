import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from lowbit.data import Data, InputInfo, Sample, open_data
from lowbit.data.split import Split, split

INPUTS = [InputInfo("x", np.dtype(np.float32), (1, 2))]


def _data(count: int) -> Data:
    return open_data([{"x": np.full((1, 2), k + 1, np.float32)} for k in range(count)], INPUTS)


def _values(feeds: Iterable[Sample]) -> list[int]:
    return [int(feed["x"][0, 0]) for feed in feeds]


def test_samples_beyond_the_limit_are_held_out_and_never_calibrate() -> None:
    parts = split(_data(12), 8, 4)

    calibration, verification = _values(parts.calibration()), _values(parts.verification())
    assert parts.is_verified_on_held_out
    assert len(parts.held_out) == 4
    assert len(calibration) == parts.calibration_count == 8
    assert len(verification) == parts.verification_count == 4
    assert sorted(calibration + verification) == list(range(1, 13))


def test_without_spare_samples_some_of_calibration_verify() -> None:
    for limit in (None, 6, 20):
        parts = split(_data(6), limit, 4)

        assert not parts.is_verified_on_held_out
        assert _values(parts.calibration()) == [1, 2, 3, 4, 5, 6]
        assert parts.verification_count == 4


def test_one_sample_does_both() -> None:
    parts = split(_data(1), None, 4)

    assert _values(parts.calibration()) == _values(parts.verification()) == [1]
    assert _values([parts.first()]) == [1]


def test_an_eighth_validates_the_steps() -> None:
    parts = split(_data(44), 40, 4)

    fitting, validation = _values(parts.fitting()), _values(parts.validation())
    assert len(validation) == 5
    assert sorted(fitting + validation) == _values(parts.calibration())
    assert not set(_values(parts.verification())) & {*fitting, *validation}


@pytest.mark.parametrize(
    ("count", "expected"), [(15, 15), (16, 2), (127, 15), (128, 16), (500, 16)]
)
def test_few_samples_all_validate_and_of_many_sixteen_at_most(count: int, expected: int) -> None:
    assert len(split(_data(count), None, 4).validating) == expected


def test_of_few_samples_all_fit_and_validate() -> None:
    parts = split(_data(10), None, 4)

    assert _values(parts.fitting()) == sorted(_values(parts.validation())) == list(range(1, 11))


def test_with_samples_to_spare_as_many_calibrate_as_asked_for() -> None:
    parts = split(_data(64 + 4 + 8), 64, 4, 8)

    fitting, validation = _values(parts.fitting()), _values(parts.validation())
    assert len(fitting) == parts.calibration_count == 64
    assert fitting == _values(parts.calibration())
    assert (len(validation), parts.verification_count) == (8, 4)
    assert sorted([*fitting, *validation, *_values(parts.verification())]) == list(range(1, 77))


@pytest.mark.parametrize(
    ("spare", "apart", "held"), [(15, 0, 15), (16, 8, 8), (24, 8, 16), (99, 8, 32)]
)
def test_few_spare_samples_are_shared_by_validation_and_verification(spare, apart, held) -> None:
    parts = split(_data(64 + spare), 64, 32, 8)

    assert len(parts.held_out) == held
    assert len(parts.validating & parts.excluded) == apart
    assert not parts.validating & parts.held_out


def test_held_out_samples_are_spread_over_the_dataset() -> None:
    parts = split(_data(100), 90, 4)

    # Four of a hundred, with equal gaps: 99 / 5 = 19.8 apart.
    assert sorted(parts.held_out) == [20, 40, 59, 79]
    assert parts.verifying == parts.held_out


def test_no_more_is_held_out_than_the_data_has_beyond_the_limit() -> None:
    parts = split(_data(10), 8, 4)

    assert (len(parts.held_out), parts.calibration_count) == (2, 8)


def test_nothing_is_verified_if_nothing_may_be_held_out() -> None:
    parts = split(_data(10), 8, 0)

    assert parts.calibration_count == 10
    assert _values(parts.verification()) == []


@pytest.mark.parametrize("count", [1, 7, 16, 32, 33])
def test_the_first_rounds_of_verification_are_spread_over_the_data(count: int) -> None:
    parts = split(_data(64), 64 - count, count)

    held, rounds = _values(parts.verification()), _values(parts.verification_in_rounds())
    assert sorted(rounds) == held
    for some in (count // 4, count // 2, count - count // 4):
        places = sorted(held.index(value) for value in rounds[:some])
        gaps = np.diff([-1, *places, count])
        assert max(gaps) <= 2 * np.ceil(count / max(some, 1))


@pytest.mark.parametrize(
    ("count", "looks"), [(9, ()), (10, (8,)), (16, (8, 12)), (32, (8, 16, 24)), (64, (16, 32, 48))]
)
def test_verification_may_stop_after_each_quarter(count: int, looks: tuple) -> None:
    parts = split(_data(64), None, count)

    assert parts.looks == ()  # all that are asked for
    assert dataclasses.replace(parts, stops_early=True).looks == looks


def test_the_first_sample_is_read_alone() -> None:
    made = []

    def feeds() -> Iterator[dict[str, np.ndarray]]:
        for k in range(5):
            made.append(k)
            yield {"x": np.full((1, 2), k + 1, np.float32)}

    data = open_data(feeds(), INPUTS)
    whole = Split(data, 5, *[frozenset()] * 4)

    assert _values([whole.first()]) == [1]
    assert made == [0]


def test_samples_can_be_replayed() -> None:
    parts = split(_data(3), None, 1)
    replay = parts.calibration()

    assert _values(replay) == _values(replay) == [1, 2, 3]
