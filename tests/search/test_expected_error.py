"""The error that is left after refinement, as expected before it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from helpers.chains import chain, node

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.refinement import LayerReconstruction
from lowbit.evaluate.validation import Validation
from lowbit.graph import io
from lowbit.search.expected_error import LEFT, ExpectedError, with_float_weights
from lowbit.state import Quantized, extended


def _feeds(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def _quantized() -> Quantized:
    """Return a model whose weights, of seven bits, cost more than its activations."""
    model = chain(
        node("Conv", "x w1 b1", "a"), node("Relu", "a", "b"), node("Conv", "b w2 b2", "y"),
        w1=(6, 3, 3, 3), b1=(6,), w2=(4, 6, 1, 1), b2=(4,),
    )  # fmt: skip
    preset = find_preset("U16S8")
    weight = lowbit.IntegerSpec(format=lowbit.IntegerFormat.INT8, reduce_range=True)
    config = msgspec.structs.replace(
        preset, weight=weight, refinement=None, keep_only_if_better=False
    )
    return lowbit.quantize(io.to_proto(model), data=_feeds(8), config=config, verify=0).state


def test_what_is_left_lies_between_that_of_activations_and_all() -> None:
    state = _quantized()
    validation = Validation(state.loaded, _feeds(4))
    refined = msgspec.structs.replace(state.config, refinement=LayerReconstruction())

    now = ExpectedError(validation, state).sqnr()
    refined_state = extended(state, Quantized, config=refined)
    found = ExpectedError(validation, refined_state)
    later = found.sqnr()
    floats = validation.sqnr(with_float_weights(state))
    known = ExpectedError(validation, refined_state, found)

    assert np.all(floats > now + 6)
    np.testing.assert_array_equal(known.sqnr(), later)
    noise = [np.power(10.0, -decibels / 10) for decibels in (now, later, floats)]
    np.testing.assert_allclose(noise[1], noise[2] + LEFT * (noise[0] - noise[2]))


@pytest.mark.parametrize("is_refined", [False, True])
def test_samples_measured_in_parts_are_measured_as_all_at_once(is_refined: bool) -> None:
    state = _quantized()
    refinement = LayerReconstruction() if is_refined else None
    config = msgspec.structs.replace(state.config, refinement=refinement)
    state = extended(state, Quantized, config=config)
    validation = Validation(state.loaded, _feeds(4))
    found = ExpectedError(validation, state)
    same = ExpectedError(validation, state, found)

    parts = [(each.sqnr(1), each.sqnr(3), each.sqnr(2), each.sqnr()) for each in (same, found)]

    whole = ExpectedError(validation, state).sqnr()
    for one, three, two, four in parts:
        np.testing.assert_array_equal(four, whole)
        for count, some in ((1, one), (2, two), (3, three)):
            np.testing.assert_array_equal(some, whole[:count])


def test_the_model_itself_is_not_changed() -> None:
    state = _quantized()
    before = io.to_proto(state.emitted.model).SerializeToString(deterministic=True)

    with_float_weights(state)

    assert io.to_proto(state.emitted.model).SerializeToString(deterministic=True) == before
