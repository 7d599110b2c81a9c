import numpy as np

from lowbit.data import InputInfo, open_data
from lowbit.data.split import split

INPUTS = [InputInfo("x", np.dtype(np.float32), (1, 2))]


def _data(count: int):
    return open_data([{"x": np.full((1, 2), k + 1, np.float32)} for k in range(count)], INPUTS)


def _values(feeds) -> list[int]:
    return [int(feed["x"][0, 0]) for feed in feeds]


def test_what_exceeds_the_limit_is_held_out_and_never_calibrates() -> None:
    parts = split(_data(12), 8, 4)

    calibration, verification = _values(parts.calibration()), _values(parts.verification())
    assert parts.held_out
    assert len(calibration) == parts.calibration_count == 8
    assert len(verification) == parts.verification_count == 4
    assert sorted(calibration + verification) == list(range(1, 13))


def test_without_spare_samples_some_of_calibration_verify() -> None:
    for limit in (None, 6, 20):
        parts = split(_data(6), limit, 4)

        assert not parts.held_out
        assert _values(parts.calibration()) == [1, 2, 3, 4, 5, 6]
        assert parts.verification_count == 4


def test_one_sample_does_both() -> None:
    parts = split(_data(1), None, 4)

    assert _values(parts.calibration()) == _values(parts.verification()) == [1]
    assert _values([parts.first()]) == [1]


def test_an_eighth_is_held_back_to_judge_steps() -> None:
    parts = split(_data(44), 40, 4)

    fitting, judging = _values(parts.fitting()), _values(parts.judging())
    assert parts.holds_back
    assert len(judging) == 5
    assert sorted(fitting + judging) == _values(parts.calibration())
    assert not set(_values(parts.verification())) & {*fitting, *judging}


def test_of_few_samples_all_fit_and_judge() -> None:
    parts = split(_data(10), None, 4)

    assert not parts.holds_back
    assert _values(parts.fitting()) == _values(parts.judging()) == list(range(1, 11))
