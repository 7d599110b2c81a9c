"""How the samples of a run are divided."""

from __future__ import annotations

import pytest
from helpers.small_models import small_cnn, small_feeds

from lowbit.api.samples import calibration_feeds, check_needs_no_data, open_samples, validated_on
from lowbit.config.presets import find_preset
from lowbit.errors import DataError
from lowbit.graph import io
from lowbit.ops.traits import OPERATORS
from lowbit.search.goal import Goal
from lowbit.search.goal_search import Request
from lowbit.state import Loaded
from lowbit.targets.builtin import find_target


def _loaded() -> Loaded:
    return Loaded(
        loaded=io.load(small_cnn(8)),
        samples=None,
        config=find_preset("A8W8"),
        target=find_target("ryzen-ai"),
        operators=OPERATORS,
    )


def test_with_a_goal_all_samples_beyond_the_limit_rank_or_confirm() -> None:
    found = open_samples(_loaded(), small_feeds(40, 8), None, 10, (4, 0), Request(Goal("sqnr>=20")))

    assert found is not None
    assert found.calibration_count == 10
    assert (len(found.validating), len(found.held_out)) == (10, 20)
    assert not found.validating & found.held_out
    assert len(found.verifying) == 4
    assert found.verifying < found.held_out


def test_without_one_no_more_is_read_than_calibrates_and_verifies() -> None:
    found = open_samples(_loaded(), small_feeds(40, 8), None, 10, (4, 0), None)

    assert found is not None
    assert found.total == 14


def test_without_data_there_is_nothing_to_calibrate_on() -> None:
    assert open_samples(_loaded(), None, None, None, (4, 0), None) is None
    assert list(calibration_feeds(None)()) == []
    check_needs_no_data(find_preset("W8"), None)
    with pytest.raises(DataError, match="A8W8 needs data"):
        check_needs_no_data(find_preset("A8W8"), None)


def test_steps_that_are_kept_only_if_better_need_samples_of_their_own() -> None:
    assert validated_on(find_preset("A8W8"), None, 64) == 8
    assert validated_on(find_preset("BF16"), None, 64) == 0
