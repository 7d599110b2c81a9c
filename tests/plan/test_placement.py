"""Where Q/DQ goes, operator by operator: the rows of Quark's rules, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import pytest

_W = "float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}"
_IMAGE = "float[1,2,4,4]"


@dataclasses.dataclass(frozen=True)
class Case:
    """One operator between a convolution ``c`` and another that reads ``y``.

    ``own`` are activations with parameters of their own, ``shared`` those that use another's.
    """

    op: str
    own: str
    shared: str = ""
    weights: str = ""
    constants: str = ""
    rank: int = 4


NPU = {
    "Conv": Case("Conv <kernel_shape=[1,1]> (c, k)", "x c y z", weights="k", constants="float[2,2,1,1] k = {1.0, 2.0, 3.0, 4.0}"),
    "ConvTranspose": Case("ConvTranspose <kernel_shape=[1,1]> (c, k)", "x c y z", weights="k", constants="float[2,2,1,1] k = {1.0, 2.0, 3.0, 4.0}"),
    "Add": Case("Add (c, x)", "x c y z"),
    "Add constant": Case("Add (r, k)", "x r y z", weights="k", constants="float[1,2,4,1] k = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0}"),
    "Mul": Case("Mul (c, x)", "x c y z"),
    "Sub": Case("Sub (c, x)", "x c y z"),
    "Div": Case("Div (c, x)", "x c y z"),
    "Min": Case("Min (c, x)", "x c y z"),
    "Max": Case("Max (c, x)", "x c y z"),
    "Sigmoid": Case("Sigmoid (c)", "x c y z"),
    "LeakyRelu": Case("LeakyRelu <alpha=0.1> (c)", "x y z"),
    "Relu": Case("Relu (c)", "x y z"),
    "PRelu": Case("PRelu (c, k)", "x y z", weights="k", constants="float[2,1,1] k = {0.1, 0.2}"),
    "Clip(0,6)": Case("Clip (c, lo, hi)", "x y z", constants="float lo = {0.0}, float hi = {6.0}"),
    "Clip(-2,2)": Case("Clip (c, lo, hi)", "x c y z", constants="float lo = {-2.0}, float hi = {2.0}"),
    "HardSigmoid 1/6": Case("HardSigmoid <alpha=0.16666667, beta=0.5> (c)", "x c y z"),
    "HardSigmoid 0.2": Case("HardSigmoid (c)", "x c y z"),
    "Tanh": Case("Tanh (c)", "x c y z"),
    "Softmax": Case("Softmax <axis=1> (c)", "x c y z"),
    "Erf": Case("Erf (c)", "x c y z"),
    "MaxPool": Case("MaxPool <kernel_shape=[3,3], pads=[1,1,1,1]> (c)", "x c z", shared="y"),
    "AveragePool": Case("AveragePool <kernel_shape=[3,3], pads=[1,1,1,1]> (c)", "x c y z"),
    "Transpose": Case("Transpose <perm=[0,1,3,2]> (c)", "x c z", shared="y"),
    "Reshape": Case("Reshape (c, s)", "x c z", shared="y", constants="int64[4] s = {1, 2, 8, 2}"),
    "Resize": Case('Resize <mode="nearest"> (c, , s)', "x c z", shared="y", constants="float[4] s = {1.0, 1.0, 2.0, 2.0}"),
    "Slice": Case("Slice (c, a, b, d)", "x c y z", constants="int64[1] a = {0}, int64[1] b = {2}, int64[1] d = {2}"),
    "Pad": Case("Pad (c, p)", "x c y z", constants="int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}"),
    "Gather": Case("Gather <axis=2> (c, i)", "x c z", shared="y", constants="int64[2] i = {0, 1}"),
    "Concat": Case("Concat <axis=2> (c, x)", "x c y z"),
    "InstanceNormalization": Case("InstanceNormalization (c, g, h)", "x c y z", weights="g", constants="float[2] g = {1.0, 2.0}, float[2] h = {0.5, 0.5}"),
    "LayerNormalization": Case("LayerNormalization <axis=-1> (c, g, h)", "x c y z", weights="g h", constants="float[4] g = {1.0, 2.0, 1.0, 1.0}, float[4] h = {0.5, 0.5, 0.5, 0.5}"),
    "Exp": Case("Exp (c)", "x c y z"),
}  # fmt: skip


@pytest.mark.parametrize("name", NPU)
def test_operators_are_placed_as_quark_places_them(
    name: str, graph_of: Callable, plan_of: Callable
) -> None:
    case = NPU[name]
    constants = _W + (f", {case.constants}" if case.constants else "")
    first = "c = Conv <kernel_shape=[1,1]> (x, w)"
    if name == "Add constant":  # directly behind the convolution it would become its bias
        first += "\n r = Relu(c)"
    model = graph_of(
        f"{_IMAGE} x",
        f"float[?,?,?,?] z {{ {first}\n y = {case.op}\n z = Conv <kernel_shape=[1,1]> (y, w) }}",
        constants,
    )

    plan = plan_of(model, "quark-extended")

    own = {t.name for t in plan.activations() if t.leader == t.name}
    shared = {t.name for t in plan.activations() if t.leader != t.name}
    assert own == set(case.own.split())
    assert shared == set(case.shared.split())
    assert {t.name for t in plan.weights()} == {"w", *case.weights.split()}


@pytest.mark.parametrize(
    ("attributes", "axis"), [("", 1), ("<transB = 1>", 0), ("<transB = 0>", 1)]
)
def test_per_channel_axes_are_those_of_the_outputs(
    attributes: str, axis: int, graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2] x",
        f"float[1,2] y {{ y = Gemm {attributes} (x, w) }}",
        "float[2,2] w = {1.0, 2.0, 3.0, 4.0}",
    )
    weight = plan_of(model).weights()[0].spec

    plan = plan_of(model, weight=msgspec.structs.replace(weight, per_channel=True))

    assert plan.weights()[0].axis == axis


def test_shape_computations_stay_float(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,2,?,?] x",
        """float[?,?,?,?] y {
            c = Conv <kernel_shape=[1,1]> (x, w)
            s = Shape (c)
            f = Cast <to = 1> (s)
            m = Mul (f, two)
            i = Cast <to = 7> (m)
            y = Resize <mode = "nearest"> (c, , , i)
        }""",
        f"{_W}, float[4] two = {{1.0, 1.0, 2.0, 2.0}}",
    )

    plan = plan_of(model)

    assert not {"f", "m", "two"} & set(plan.by_name())
    assert "computes a shape" in {n.why for n in plan.float_nodes}


def test_nodes_with_infinite_constants_stay_float(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        f"{_IMAGE} x",
        "float[1,2,4,4] y { c = Conv <kernel_shape=[1,1]> (x, w)\n r = Relu (c)\n y = Add (r, m) }",
        f"{_W}, float[1,1,4,4] m = {{0.0, -inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "
        "0.0, 0.0, 0.0, 0.0}",
    )

    plan = plan_of(model)

    assert "m" not in plan.by_name()
    assert {n.why for n in plan.float_nodes} == {"one of its constants is infinite"}


def test_data_movement_between_float_operators_is_left_alone(
    graph_of: Callable, plan_of: Callable
) -> None:
    body = "float[2,?] y { e = Exp (x)\n t = Transpose (e)\n y = Sqrt (t) }"

    assert plan_of(graph_of("float[4,2] x", body)).tensors == ()


@pytest.mark.parametrize("clip", ["0.0, 6.0", "0.0, 1.0", "-1.0, 1.0"])
def test_clips_are_fused_within_the_bounds_a_target_has(
    clip: str, graph_of: Callable, plan_of: Callable
) -> None:
    low, high = clip.split(", ")
    model = graph_of(
        f"{_IMAGE} x",
        "float[1,2,4,4] y { c = Conv <kernel_shape=[1,1]> (x, w)\n y = Clip (c, lo, hi) }",
        f"{_W}, float lo = {{{low}}}, float hi = {{{high}}}",
    )

    assert ("c" in plan_of(model, "ryzen-ai").by_name()) == (low != "0.0")
    assert "c" not in plan_of(model, "onnxruntime").by_name()


def test_a_tensor_with_two_readers_is_not_fused(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        f"{_IMAGE} x",
        "float[1,2,4,4] y, float[1,2,4,4] z "
        "{ c = Conv <kernel_shape=[1,1]> (x, w)\n y = Relu (c)\n z = Sigmoid (c) }",
        _W,
    )

    assert "c" in plan_of(model).by_name()
