"""Blocks lie along the dimension that is summed over."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import onnx_ir as ir
import pytest

from lowbit.config.specs import BLOCKS
from lowbit.targets import find_target
from lowbit.targets.target import BlockAxes

_ATTENTION = (
    "float[2,4,8] x",
    """float[2,4,4] y {
        q = MatMul(x, w)
        kt = Transpose <perm = [0, 2, 1]> (q)
        s = MatMul(q, kt)
        n = Add(s, s)
        y = Softmax <axis = 1> (n)
    }""",
    "float[8,8] w = {" + ", ".join(["0.1"] * 64) + "}",
)
_LAYERS = (
    "float[1,2,4,4] x",
    """float[1,3] y {
        c = ConvTranspose(x, w)
        p = GlobalAveragePool(c)
        f = Flatten(p)
        y = Gemm(f, v, b)
    }""",
    "float[2,3,1,1] w = {1,2,3,4,5,6}, float[3,3] v = {1,2,3,4,5,6,7,8,9}, float[3] b = {1,2,3}",
)


def _axes(
    graph_of: Callable, plan_of: Callable, model: tuple[str, ...], rule: BlockAxes
) -> dict[str, int | None]:
    spec = BLOCKS["BFP16"]
    target = msgspec.structs.replace(find_target("ryzen-ai-float"), block_axes=rule)
    plan = plan_of(graph_of(*model), target, activation=spec, weight=spec, bias=spec)
    return {tensor.name: tensor.axis for tensor in plan.tensors}


@pytest.mark.parametrize(("rule", "unread"), [("contracted", -1), ("channels", 1)])
def test_matrix_products_and_softmax_decide(
    graph_of: Callable, plan_of: Callable, rule: BlockAxes, unread: int
) -> None:
    axes = _axes(graph_of, plan_of, _ATTENTION, rule)

    assert axes["x"] == axes["q"] == -1
    assert axes["kt"] == -2
    assert axes["w"] == 0
    assert axes["n"] == 1, "Softmax sums over axis 1"
    assert axes["s"] == -1
    assert axes["y"] == unread


def test_channels_of_layers(graph_of: Callable, plan_of: Callable) -> None:
    contracted = _axes(graph_of, plan_of, _LAYERS, "contracted")
    channels = _axes(graph_of, plan_of, _LAYERS, "channels")

    assert (contracted["x"], contracted["c"], contracted["f"]) == (1, 1, 1)
    assert contracted["w"] == 0, "a transposed convolution sums over its weight's first axis"
    assert channels["w"] == 1
    assert contracted["v"] == channels["v"] == 0
    assert contracted["b"] == channels["b"] == 0


def test_tensors_that_no_operator_decides_are_cut_along_the_channels(
    graph_of: Callable, plan_of: Callable
) -> None:
    image = ("float[1,4,2,2] x", "float[1,4,2,2] y { y = Sigmoid (x) }")
    sequence = ("float[1,4,2] x", "float[1,4,2] y { y = Sigmoid (x) }")
    vector = ("float[4] x", "float[4] y { y = Sigmoid (x) }")

    assert _axes(graph_of, plan_of, image, "contracted") == {"x": 1, "y": 1}
    assert _axes(graph_of, plan_of, sequence, "contracted") == {"x": -1, "y": -1}
    assert _axes(graph_of, plan_of, sequence, "channels") == {"x": 1, "y": 1}
    assert _axes(graph_of, plan_of, vector, "channels") == {"x": 0, "y": 0}


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("", (1, 0)),
        ("<transA=1>", (0, 0)),
        ("<transB=1>", (1, 1)),
        ("<transA=1, transB=1>", (0, 1)),
    ],
)
def test_a_gemm_is_cut_along_its_sum_whatever_is_transposed(
    graph_of: Callable, plan_of: Callable, attributes: str, expected: tuple[int, int]
) -> None:
    model = (
        "float[2,2] x",
        f"float[2,2] y {{ y = Gemm {attributes} (x, w) }}",
        "float[2,2] w = {1,2,3,4}",
    )

    axes = _axes(graph_of, plan_of, model, "contracted")

    assert (axes["x"], axes["w"]) == expected


def test_single_numbers_stay_in_float(graph_of: Callable, plan_of: Callable) -> None:
    model = ("float[2,8] x", "float[2,8] y { y = Mul(x, k) }", "float k = {0.3}")

    axes = _axes(graph_of, plan_of, model, "contracted")

    assert "k" not in axes
    assert set(axes) == {"x", "y"}


def test_a_vector_in_a_matrix_product_is_cut_along_its_only_axis(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = ("float[2,8] x, float[8] v", "float[2] y { y = MatMul(x, v) }")

    axes = _axes(graph_of, plan_of, model, "contracted")

    assert axes["x"] == axes["v"] == -1


def test_integers_have_no_axis_of_blocks(graph_of: Callable, plan_of: Callable) -> None:
    plan = plan_of(graph_of(*_LAYERS), "ryzen-ai")

    assert {tensor.axis for tensor in plan.tensors} == {None}


def test_tensors_of_unknown_rank_count_from_the_end(graph_of: Callable, plan_of: Callable) -> None:
    model = ("float x", "float y { y = Sigmoid (x) }")

    def unknown(*text: str) -> ir.Model:
        built = graph_of(*text)
        for value in (built.graph.inputs[0], built.graph.outputs[0]):
            value.shape = None
        return built

    assert _axes(unknown, plan_of, model, "contracted") == {"x": -1, "y": -1}
