"""The samples of promotion stand for all, and those that refinement did not see are known."""

from __future__ import annotations

import numpy as np
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized

from lowbit.config.presets import find_preset
from lowbit.data import InputInfo, open_data
from lowbit.data.split import split
from lowbit.search.promotion_samples import PromotionSamples

_INPUTS = [InputInfo("input", np.dtype(np.float32), (1, 3, 8, 8))]


def _feeds() -> list[dict[str, np.ndarray]]:
    """Return samples of which a few are much stronger than all others."""
    strength = np.full(60, 0.1, np.float32)
    strength[::10] = 10.0
    return [
        {"input": feed["input"] * s} for feed, s in zip(small_feeds(60, 8), strength, strict=True)
    ]


def _found(limit: int | None, validation: int) -> PromotionSamples:
    feeds = _feeds()
    state = quantized(small_cnn(8), find_preset("A8W8"), feeds[:8])
    return PromotionSamples.of(state, split(open_data(feeds, _INPUTS), limit, 8, validation))


def test_strong_and_weak_samples_have_their_shares() -> None:
    found = _found(48, 4)

    strong = [np.abs(sample.feed["input"]).max() > 5 for sample in found.chosen]
    assert len(found.chosen) == 16
    # One in ten is strong: one or two of sixteen, never half of them and never none.
    assert 1 <= sum(strong) <= 4


def test_samples_that_nothing_was_fitted_to_are_known() -> None:
    feeds = [feed["input"].tobytes() for feed in _feeds()]
    parts = split(open_data(_feeds(), _INPUTS), 48, 8, 4)

    unseen = [feeds.index(sample.feed["input"].tobytes()) for sample in _found(48, 4).unseen]

    assert unseen == sorted(parts.validating)
    assert not {feed["input"].tobytes() for feed in parts.calibration()} & {
        feeds[i] for i in unseen
    }
    assert _found(None, 0).unseen == ()


def test_parts_are_measured_where_the_noise_is() -> None:
    found = _found(48, 4)
    state = quantized(small_cnn(8), find_preset("A8W8"), _feeds()[:8])
    errors = found.errors(state)

    few = found.few(errors)

    shares = np.array(errors.noise_shares())
    assert set(np.argsort(-shares)[:2]) <= set(few)
    assert len(few) == 3
