"""Which nodes take the factors of channels, and which layers consume these."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chains import chain, node

from lowbit.graph.editing import constant
from lowbit.ops.channels import ChannelLayout
from lowbit.transforms.smooth_sites import Factor, Site, find_sites

_GAMMA = np.exp(np.linspace(-1, 1, 8)).astype(np.float32)
_CONSTANTS = {
    "gamma": _GAMMA, "beta": -_GAMMA, "half": np.float32(0.5), "row": np.ones((8, 1), "f"),
    "w": (8, 6), "v": (8, 4), "k": (8, 3, 1, 1), "zero": np.float32(0), "four": np.float32(4),
}  # fmt: skip


def sites(*nodes: onnx.NodeProto, insert: bool = False, **constants: object) -> list[Site]:
    return find_sites(chain(*nodes, **(_CONSTANTS | constants)).graph, insert=insert)


def described(site: Site) -> tuple[str, list[str], list[str]]:
    """Return who takes the factor, the constants scaled with it, and who consumes the channels."""
    producer = site.layer.node.op_type if site.layer is not None else ""
    factors = [f"{f.node.op_type}[{f.index}]" for f in site.factors]
    return producer, factors, [str(c.node.outputs[0].name) for c in site.consumers]


@pytest.mark.parametrize(
    ("nodes", "producer", "factors"),
    [
        ([node("LayerNormalization", "x gamma beta", "n")], "",
         ["LayerNormalization[1]", "LayerNormalization[2]"]),
        ([node("LayerNormalization", "x gamma", "n", axis=3)], "", ["LayerNormalization[1]"]),
        ([node("Mul", "x gamma", "n")], "", ["Mul[1]"]),
        ([node("Mul", "gamma x", "n")], "", ["Mul[0]"]),
        ([node("Div", "x gamma", "n")], "", ["Div[1]"]),
        ([node("Div", "gamma x", "n")], "", ["Div[0]"]),
        ([node("Mul", "x half", "n")], "", ["Mul[1]"]),
        ([node("Mul", "x gamma", "a"), node("Add", "a beta", "b"), node("Relu", "b", "n")], "",
         ["Mul[1]", "Add[1]"]),
        ([node("Mul", "x gamma", "a"), node("Sub", "beta a", "n")], "", ["Mul[1]", "Sub[0]"]),
        ([node("Conv", "x k", "a"), node("Transpose", "a", "n", perm=[0, 2, 3, 1])], "Conv", []),
    ],
)  # fmt: skip
def test_the_nearest_node_that_can_be_scaled_takes_the_factor(
    nodes: list[onnx.NodeProto], producer: str, factors: list[str]
) -> None:
    (site,) = sites(*nodes, node("MatMul", "n w", "y"))

    assert described(site) == (producer, factors, ["y"])
    assert site.channels == 8


def test_all_layers_that_consume_the_channels_belong_together() -> None:
    (site,) = sites(
        node("Mul", "x gamma", "n"), node("MatMul", "n w", "a"), node("MatMul", "n w2", "b"),
        node("Shape", "n", "shape"), node("Add", "a b", "y"), w2=(8, 6),
    )  # fmt: skip

    assert described(site)[2] == ["a", "b"]


@pytest.mark.parametrize(
    "nodes",
    [
        [node("LayerNormalization", "x gamma2", "n", axis=2), node("MatMul", "n w", "y")],
        [node("Mul", "x x", "n"), node("MatMul", "n w", "y")],
        [node("Mul", "x row", "n"), node("MatMul", "n w", "y")],
        [node("Mul", "x gamma", "n"), node("MatMul", "n w", "a"), node("MatMul", "n n", "b"),
         node("ReduceMax", "b", "c", keepdims=0), node("Add", "a c", "y")],
        [node("Mul", "x gamma", "n"), node("Gemm", "n2 w", "a"), node("Add", "n x", "y")],
        [node("Mul", "x gamma", "n"), node("MatMul", "n w", "a"), node("MatMul", "x w", "b"),
         node("Add", "a b", "y")],
        [node("Mul", "x gamma", "a"), node("Add", "a x", "n"), node("MatMul", "n w", "y")],
        [node("Mul", "x gamma", "a"), node("Clip", "a zero four", "n"), node("MatMul", "n w", "y")],
        [node("Conv", "x k", "a"), node("MatMul", "a w5", "y")],
        [node("Mul", "x gamma", "n"), node("Conv", "n k", "y")],
    ],
    ids=["two axes", "no constant", "other axis", "no weights", "an output", "shared weights",
         "computed sum", "bounded", "another axis", "no matrix"],
)  # fmt: skip
def test_there_is_no_site_where_a_factor_would_change_more(nodes: list[onnx.NodeProto]) -> None:
    extra = {"gamma2": np.ones((8, 8), "f"), "w5": (8, 5), "n2": np.ones((2, 8), "f")}

    assert sites(*nodes, **extra) == []


def test_a_mul_is_put_before_layers_that_nothing_serves() -> None:
    nodes = (
        node("Sigmoid", "x", "n"), node("MatMul", "n w", "a"), node("MatMul", "n w2", "b"),
        node("Add", "a b", "c"), node("LayerNormalization", "c g6", "d"),
        node("MatMul", "d u", "y"),
    )  # fmt: skip
    more = {"w2": (8, 6), "g6": np.ones(6, "f"), "u": (6, 3)}

    assert [described(s) for s in sites(*nodes, **more)] == [("", ["LayerNormalization[1]"], ["y"])]
    assert [described(s) for s in sites(*nodes, insert=True, **more)] == [
        ("", ["LayerNormalization[1]"], ["y"]),
        ("", [], ["a", "b"]),
    ]


def test_a_graph_without_matrices_has_no_sites() -> None:
    assert sites(node("Conv", "x k", "a"), node("Relu", "a", "y"), insert=True) == []


def _factor(data: np.ndarray, layout: ChannelLayout, *, divides: bool = False) -> Factor:
    model = chain(node("Mul", "x c", "y"), c=data)
    return Factor(next(iter(model.graph)), 1, layout, divides)


@pytest.mark.parametrize(
    ("shape", "layout", "channels", "expected"),
    [
        ((), ChannelLayout(3, 4), 8, True),
        ((1,), ChannelLayout(3, 4), 8, True),
        ((8,), ChannelLayout(3, 4), 8, True),
        ((1, 8), ChannelLayout(-1, 0), 8, True),
        ((3, 1, 1), ChannelLayout(1, 4), 3, True),
        ((8,), ChannelLayout(3, 4), 6, False),
        ((8, 1), ChannelLayout(3, 4), 8, False),
        ((8,), ChannelLayout(1, 4), 8, False),
    ],
)
def test_a_constant_fits_with_one_number_or_one_per_channel(
    shape: tuple[int, ...], layout: ChannelLayout, channels: int, *, expected: bool
) -> None:
    assert _factor(np.ones(shape, np.float32), layout).fits(channels) is expected


def test_numbers_are_the_largest_of_each_channel() -> None:
    data = np.float32([[[1], [-5]], [[2], [3]], [[-4], [0]]])

    assert _factor(data, ChannelLayout(1, 4)).numbers(3).tolist() == [5, 3, 4]
    assert _factor(np.float32([-2]), ChannelLayout(3, 4)).numbers(3).tolist() == [2, 2, 2]


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize(
    ("data", "layout", "column"),
    [
        (_GAMMA, ChannelLayout(3, 4), (8,)),
        (np.float32(3), ChannelLayout(3, 4), (8,)),
        (np.ones((8, 1, 1), "f"), ChannelLayout(1, 4), (8, 1, 1)),
    ],
)
def test_a_constant_is_divided_by_the_factors_or_multiplied_where_it_divides(
    data: np.ndarray, layout: ChannelLayout, column: tuple[int, ...], *, divides: bool
) -> None:
    model = chain(node("Mul", "x c", "y"), c=data)
    factor = Factor(next(iter(model.graph)), 1, layout, divides)
    s = np.linspace(0.5, 4, 8)

    factor.scale(model.graph, s)

    expected = data * s.reshape(column) if divides else data / s.reshape(column)
    np.testing.assert_allclose(constant(factor.node.inputs[1]), expected, rtol=1e-6)


def _layer_site() -> tuple[ir.Model, Site]:
    model = chain(node("MatMul", "x first", "n"), node("MatMul", "n w", "y"),
                  first=(8, 8), **_CONSTANTS)  # fmt: skip
    (site,) = find_sites(model.graph)
    return model, site


def test_a_layer_before_is_rounded_with_the_factors_unless_per_channel() -> None:
    _, site = _layer_site()
    weight = np.float64(site.layer.weight)

    produced = site.produced(per_channel=False)

    np.testing.assert_allclose(produced.ranges, np.abs(weight).max(axis=0), rtol=1e-6)
    np.testing.assert_allclose(produced.powers, np.square(weight).mean(axis=0), rtol=1e-6)
    assert site.produced(per_channel=True) is None


def test_a_constant_before_is_rounded_with_the_factors_unless_it_divides() -> None:
    (multiplied,) = sites(node("Mul", "x gamma", "n"), node("MatMul", "n w", "y"))
    (divided,) = sites(node("Div", "x gamma", "n"), node("MatMul", "n w", "y"))

    np.testing.assert_allclose(multiplied.produced(per_channel=False).ranges, _GAMMA, rtol=1e-6)
    np.testing.assert_allclose(multiplied.produced(per_channel=True).powers, _GAMMA**2, rtol=1e-6)
    assert divided.produced(per_channel=False) is None
    assert Site().produced(per_channel=False) is None
