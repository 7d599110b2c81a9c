"""Offsets on tensors: the model computes the same, and where it could not, nothing has an offset."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chains import chain, node

from lowbit.config.transforms import Rescaling
from lowbit.errors import ConfigError
from lowbit.graph.session import session
from lowbit.ops.traits import clip_bounds
from lowbit.transforms import implementation_of
from lowbit.transforms.centering import find_offset_groups
from lowbit.transforms.implementation import Context

_CONSTANTS = {
    "w": (6, 3, 3, 3),
    "b": (6,),
    "v": (6, 3, 1, 1),
    "w2": (4, 6, 1, 1),
    "b2": (4,),
    "both": (4, 12, 1, 1),
    "d": (6, 1, 3, 3),
    "d1": (6, 1, 1, 1),
    "low": np.float32(0),
    "high": np.float32(1.5),
    "bn": (1, 6, 1, 1),
}
_FIRST = [node("Conv", "x w b", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "r")]
_LAST = node("Conv", "r w2 b2", "y")


def make(*nodes: onnx.NodeProto) -> ir.Model:
    used = {name for each in nodes for name in each.input}
    return chain(*nodes, **{name: data for name, data in _CONSTANTS.items() if name in used})


def run(model: ir.Model, name: str) -> np.ndarray:
    feed = {"x": np.random.default_rng(7).normal(size=(1, 3, 8, 8)).astype(np.float32)}
    with session(model, [name]) as running:
        return running.run([name], feed)[0]


def groups(model: ir.Model) -> list[tuple[str, ...]]:
    return [group.tensors for group in find_offset_groups(model.graph)]


def moved(model: ir.Model, **offsets: float):
    config = Rescaling(offsets=offsets)
    return implementation_of(config).apply(model, config, Context())


@pytest.mark.parametrize(
    ("nodes", "tensors"),
    [
        ([*_FIRST, _LAST], ("r",)),
        ([*_FIRST, node("Conv", "r w2", "y")], ("r",)),  # it gets a bias
        ([node("Conv", "x v", "a"), node("Relu", "a", "r"), _LAST], ("r",)),
        ([_FIRST[0], node("Clip", "a low high", "r"), _LAST], ("r",)),
        ([*_FIRST, node("Conv", "r d", "y", group=6)], ("r",)),
        # Padding of a MaxPool is less than everything, not zero.
        (
            [
                *_FIRST,
                node("MaxPool", "r", "p", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
                node("Conv", "p w2 b2", "y"),
            ],
            ("r", "p"),
        ),
        (
            [
                *_FIRST,
                node("Conv", "x v", "c"),
                node("Relu", "c", "s"),
                node("Concat", "r s", "rs", axis=1),
                node("Conv", "rs both b2", "y"),
            ],
            ("r", "s", "rs"),
        ),
    ],
)
def test_an_offset_changes_nothing_else(nodes: list, tensors: tuple[str, ...]) -> None:
    model = make(*nodes)
    assert [set(group) for group in groups(model)] == [set(tensors)]

    found = moved(model, **{tensors[-1]: 0.7})

    np.testing.assert_allclose(run(found.model, "y"), run(model, "y"), rtol=1e-4, atol=1e-4)
    for name in tensors:
        np.testing.assert_allclose(run(found.model, name), run(model, name) - 0.7, atol=1e-5)
    assert found.notes == ("centered 1 tensors after a Relu, or groups of them, around zero",)
    assert "Relu" not in [n.op_type for n in found.model.graph]


def test_a_clip_keeps_both_its_bounds() -> None:
    model = make(_FIRST[0], node("Clip", "a low high", "r"), _LAST)

    found = moved(model, r=0.5).model

    (clip,) = (n for n in found.graph if n.op_type == "Clip")
    assert clip_bounds(clip) == (-0.5, 1.0)


@pytest.mark.parametrize(
    "rest",
    [
        [node("Conv", "r d", "y", group=6, pads=[1, 1, 1, 1])],  # padding stands for zero
        [node("GlobalAveragePool", "r", "y")],
        [node("GlobalAveragePool", "r", "p"), node("Conv", "p w2 b2", "y")],
        [node("Add", "r a", "y")],  # and its Relu is not the only one to read the layer
        [node("Mul", "r bn", "m"), node("Conv", "m w2 b2", "y")],
        [node("Sigmoid", "r", "m"), node("Conv", "m w2 b2", "y")],
        [node("Conv", "r d1", "c", group=6), node("Sigmoid", "r", "z"), node("Add", "c z", "y")],
    ],
)
def test_what_could_not_be_exact_has_no_offset(rest: list) -> None:
    assert groups(make(*_FIRST, *rest)) == []


def test_an_output_of_the_model_has_no_offset() -> None:
    assert groups(make(_FIRST[0], node("Relu", "a", "y"))) == []


def test_it_applies_where_a_named_tensor_can_have_an_offset() -> None:
    model = make(*_FIRST, _LAST)
    for offsets, applies in (({"r": 1.0}, True), ({"r": 0.0}, False), ({"y": 1.0}, False)):
        config = Rescaling(offsets=offsets)
        assert implementation_of(config).applies(model, config) is applies


@pytest.mark.parametrize("offset", [-1.0, float("inf"), float("nan")])
def test_an_offset_is_not_negative(offset: float) -> None:
    with pytest.raises(ConfigError, match=r"rescaling.offsets\['a'\] is .*; it must be 0 or more"):
        Rescaling(offsets={"a": offset})
