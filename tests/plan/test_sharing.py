from __future__ import annotations

from collections.abc import Callable

import pytest

from lowbit.config.specs import IntegerSpec, TensorOverride
from lowbit.numerics.formats import IntegerFormat

_W = "float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}"


def test_chains_of_data_movement_share_the_first_tensors_parameters(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        """float[?,?,?,?] y {
            c = Conv <kernel_shape=[1,1]> (x, w)
            t = Transpose <perm=[0,1,3,2]> (c)
            p = MaxPool <kernel_shape=[2,2]> (t)
            y = Conv <kernel_shape=[1,1]> (p, w)
        }""",
        _W,
    )

    tensors = plan_of(model).by_name()

    assert tensors["t"].leader == tensors["p"].leader == "c"
    assert "same numbers as c" in tensors["p"].why


def test_another_spec_ends_the_sharing(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        "float[1,2,4,4] y { t = Transpose <perm=[0,1,3,2]> (x)\n y = Conv <kernel_shape=[1,1]> (t, w) }",
        _W,
    )
    wide = TensorOverride(tensor="t", spec=IntegerSpec(format=IntegerFormat.INT16))

    assert plan_of(model, tensors=(wide,)).by_name()["t"].leader == "t"


@pytest.mark.parametrize(("mode", "leader"), [("nearest", "c"), ("linear", "r")])
def test_resizing_shares_only_where_numbers_are_copied(
    mode: str, leader: str, graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        f"""float[?,?,?,?] y {{
            c = Conv <kernel_shape=[1,1]> (x, w)
            r = Resize <mode="{mode}"> (c, , s)
            y = Conv <kernel_shape=[1,1]> (r, w)
        }}""",
        f"{_W}, float[4] s = {{1.0, 1.0, 2.0, 2.0}}",
    )

    assert plan_of(model).by_name()["r"].leader == leader


def test_the_only_input_of_a_clamp_is_measured_behind_it(
    graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        "float[1,2,4,4] y { s = Mul (x, x)\n y = Clip (s, lo, hi) }",
        "float lo = {-2.0}, float hi = {2.0}",
    )

    tensors = plan_of(model).by_name()

    assert tensors["s"].observe == "y"


@pytest.mark.parametrize(
    ("target", "rule"),
    [("ryzen-ai", "merged"), ("quark-extended", "output"), ("quark-npu-cnn", "lowest")],
)
def test_concats_are_aligned_through_fused_relus(
    target: str, rule: str, graph_of: Callable, plan_of: Callable
) -> None:
    model = graph_of(
        "float[1,2,4,4] x",
        """float[1,4,4,4] y {
            a = Conv <kernel_shape=[1,1]> (x, w)
            b = Relu (a)
            y = Concat <axis=1> (b, x)
        }""",
        _W,
    )

    groups = [g for g in plan_of(model, target).groups if g.op_type == "Concat"]

    assert [(g.rule, g.inputs, g.outputs) for g in groups] == [(rule, ("b", "x"), ("y",))]
