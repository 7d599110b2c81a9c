"""The first convolution of a network that normalizes before it activates."""

from __future__ import annotations

import numpy as np
import pytest
from chains import chain, node, outputs

from lowbit.config.transforms import QuarkCle
from lowbit.transforms import equalize

_NORM = {
    f"{name}{number}": np.abs(np.random.default_rng(number).normal(size=size)).astype("f") + 0.5
    for number, size in ((1, 6), (2, 9))
    for name in ("g", "b", "m", "v")
}
_HALVES = 0.5 ** np.arange(6).reshape(-1, 1, 1, 1)
_UNEVEN = (np.random.default_rng(0).normal(size=(6, 3, 3, 3)) * _HALVES).astype("f")


def test_channels_are_raised_and_normalizations_undo_it() -> None:
    model = chain(
        node("Conv", "x w1 b", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "r"),
        node("Concat", "x r", "c", axis=1), node("BatchNormalization", "c g2 b2 m2 v2", "n2"),
        node("BatchNormalization", "r g1 b1 m1 v1", "n1"), node("Relu", "n1", "q"),
        node("Concat", "n2 q", "y", axis=1), w1=_UNEVEN, b=(6,), **_NORM,
    )  # fmt: skip

    result = equalize(model, QuarkCle())

    assert result.notes[0].endswith("and the first convolution")
    peaks = np.abs(result.model.graph.initializers["w1"].const_value.numpy()).max(axis=(1, 2, 3))
    np.testing.assert_allclose(peaks[:4], peaks[0], rtol=1e-5)
    np.testing.assert_allclose(outputs(result.model), outputs(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("other", ["Sigmoid", "Neg"])
def test_another_reader_leaves_it_alone(other: str) -> None:
    model = chain(
        node("Conv", "x w1 b", "a"), node("Relu", "a", "r"),
        node("BatchNormalization", "r g1 b1 m1 v1", "n1"),
        node(other, "r", "s"), node("Add", "n1 s", "y"), w1=_UNEVEN, b=(6,), **_NORM,
    )  # fmt: skip

    result = equalize(model, QuarkCle())

    assert "first convolution" not in result.notes[0]
    np.testing.assert_array_equal(outputs(result.model), outputs(model))
