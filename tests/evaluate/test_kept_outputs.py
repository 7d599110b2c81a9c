"""What is kept of a sample, as copies or in a file."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from lowbit.evaluate.kept_arrays import ArrayKeeper
from lowbit.evaluate.kept_outputs import KeptOutputs
from lowbit.graph import io
from lowbit.graph.session import session

_MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,3] x) => (float[2,3] y, seq(float[2,3]) s) { y = Neg(x)\n s = SequenceConstruct(x, y) }"""
_X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("in_keeper", [False, True])
def test_it_is_the_same_as_copies_and_in_a_keeper(in_keeper: bool) -> None:
    kept = KeptOutputs(("y", "s"), frozenset({1}), lambda _, array: array[:1])
    keeper = ArrayKeeper(0)

    with session(io.load(onnx.parser.parse_model(_MODEL)), ["y", "s"], name="it") as running:
        items = [(running, index, {"x": _X}) for index in (0, 1)]
        none, found = (kept.into(keeper, *item) if in_keeper else kept(*item) for item in items)

    assert none is None  # a sample that it is not asked for
    assert found is not None
    assert list(found) == ["y", "s[0 of 2]", "s[1 of 2]"]
    for name, want in zip(found, (-_X, _X, -_X), strict=True):
        np.testing.assert_array_equal(found[name], want[:1])
