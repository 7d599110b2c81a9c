"""What two models compute alike, and values that are computed on from those known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph.differences import Advancing, frontier
from lowbit.graph.session import session

_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,4] x) => (float[1,4] y, float[1,4] z)
<float[4] a = {1.0, 2.0, 3.0, 4.0}, float[4] b = {1.0, -1.0, 0.5, 2.0}>
{
    p = Add (x, a)
    q = Relu (p)
    r = Mul (q, b)
    s = LeakyRelu <alpha = 0.5> (r)
    y = Add (s, q)
    z = Neg (p)
}
"""


def _model(old: str = "", new: str = "") -> ir.Model:
    return ir.from_onnx_text(_MODEL.replace(old, new) if old else _MODEL)


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ("", "", {"y"}),
        ("b = {1.0", "b = {1.5", {"q"}),
        ("a = {1.0", "a = {1.5", {"x"}),
        ("alpha = 0.5", "alpha = 0.25", {"r", "q"}),
        ("Neg (p)", "Abs (p)", {"y"}),
        ("y = Add (s, q)", "y = Add (s, p)", {"s", "p"}),
        ("y = Add (s, q)", "t = Neg (q)\n y = Add (s, t)", {"s", "q"}),
    ],
)
def test_the_frontier_is_as_near_to_the_output_as_can_be(old, new, want) -> None:
    assert set(frontier(_model(), _model(old, new), ["y"])) == want


def test_values_are_those_of_the_whole_model_whatever_was_asked_for_before() -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 4)).astype(np.float32)} for _ in range(3)]
    model = _model()
    advancing = Advancing(model, feeds)

    for names in (["p"], ["r", "q"], ["s", "q"], ["y"], ["p", "z"]):
        found = advancing.at(names)
        assert all(set(row) == set(names) for row in found)
        with session(model, names) as running:
            for row, feed in zip(found, feeds, strict=True):
                for name, array in zip(names, running.run(names, feed), strict=True):
                    np.testing.assert_array_equal(row[name], array)
