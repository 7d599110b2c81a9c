"""Channel maxima from one pass."""

from __future__ import annotations

import numpy as np
from chains import chain, node

from lowbit.ops.channels import Place
from lowbit.transforms.channel_statistics import channel_maxima


def test_maxima_are_over_all_samples_and_positions() -> None:
    model = chain(node("Neg", "x", "a"), node("Relu", "a", "y"))
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(5)]
    told = []

    value = next(iter(model.graph)).outputs[0]
    found = channel_maxima(model, [(value, Place(1, 4))], iter(feeds), told.append)

    everything = np.concatenate([feed["x"] for feed in feeds])
    np.testing.assert_array_equal(found["a"], (-everything).max(axis=(0, 2, 3)))
    assert told == [1, 2, 3, 4, 5]


def test_no_data_gives_no_maxima() -> None:
    model = chain(node("Neg", "x", "a"), node("Relu", "a", "y"))
    value = next(iter(model.graph)).outputs[0]

    assert channel_maxima(model, [(value, Place(1, 4))], []) == {}
