"""One value that each stage extends: nothing is lost on the way, and nothing is held twice."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from lowbit import state
from lowbit.state import Loaded, Normalized, Prepared, Quantized, Transformed, extended

STAGES = (
    state.Loaded,
    state.Normalized,
    state.Transformed,
    state.Prepared,
    state.Planned,
    state.Calibrated,
    state.Solved,
    state.Quantized,
)


def names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def everything(kind: type) -> dict[str, object]:
    """Return a value for each field, all of them different."""
    return {name: f"the {name}" for name in names(kind)}


def loaded() -> Loaded:
    return Loaded(**everything(Loaded))


def test_each_stage_knows_all_that_the_one_before_does_and_more() -> None:
    for before, after in itertools.pairwise(STAGES):
        assert issubclass(after, before)
        assert set(names(before)) < set(names(after))
        assert names(after)[: len(names(before))] == names(before)


def test_every_stage_in_turn_keeps_what_is_known() -> None:
    reached = loaded()

    for kind in STAGES[1:]:
        new = {n: f"the {n}" for n in names(kind) if not hasattr(reached, n)}
        reached = extended(reached, kind, **new)

    assert type(reached) is Quantized
    assert dataclasses.asdict(reached) == everything(Quantized)


def test_what_is_found_again_replaces_what_was_known() -> None:
    start = loaded()

    changed = extended(start, Normalized, normalized="n", config="another")

    assert (changed.config, changed.samples) == ("another", "the samples")
    assert start.config == "the config"


def test_fields_with_a_default_may_stay_unsaid() -> None:
    normalized = extended(loaded(), Normalized, normalized="n")

    assert normalized.rotation_notes == ()
    assert extended(normalized, Transformed, float_model="f").transform_notes == ()


def test_an_earlier_stage_drops_what_came_after_it() -> None:
    whole = Quantized(**everything(Quantized))

    back = extended(whole, Normalized, config="another")

    assert type(back) is Normalized
    assert dataclasses.asdict(back) == {**everything(Normalized), "config": "another"}
    assert not hasattr(back, "plan")


def test_a_stage_that_found_nothing_out_is_refused() -> None:
    with pytest.raises(TypeError, match="normalized"):
        extended(loaded(), Normalized)
    with pytest.raises(TypeError, match="float_names"):
        extended(loaded(), Prepared, normalized="n", float_model="f", calibrated_model="c")


def test_what_no_stage_knows_is_refused() -> None:
    with pytest.raises(TypeError, match="wieghts"):
        extended(loaded(), Normalized, normalized="n", wieghts="w")


def test_a_state_is_never_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded().config = "another"
