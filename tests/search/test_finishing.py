"""A model is refined, signed and verified; one that is not usable is promoted and verified again."""

from __future__ import annotations

from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized

from lowbit.config.presets import find_preset
from lowbit.pipeline.pipeline import Clock, Pipeline, ignore_progress
from lowbit.search.finishing import Finisher


def _finisher() -> Finisher:
    return Finisher(Pipeline(Clock(ignore_progress)), None, (), resume=False)


def test_a_model_is_signed_and_checked() -> None:
    state = quantized(small_cnn(), find_preset("A8W8"), small_feeds(8))

    finished, report, _ = _finisher().finished(state)

    assert finished.emitted.model.metadata_props["lowbit.preset"] == "A8W8"
    # Without samples in the state nothing can be measured.
    assert (report.verdict is None) == (state.samples is None)
