"""Quark's targets: where its flows put Q/DQ, operator by operator."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.planned_models import normalized_graph, plan_for
from helpers.quark_helpers import QUARK_BLOCK

from lowbit.config.specs import BLOCKS
from lowbit.ops.traits import OPERATORS
from lowbit.quark.extension import targets
from lowbit.quark.extension.targets import (
    QUARK_EXTENDED,
    QUARK_NPU_CNN,
    QUARK_STANDARD,
    QUARK_STANDARD_SYMMETRIC,
)
from lowbit.targets import Target, find_target
from lowbit.targets.target import AlignRule
from lowbit.transforms.rewrites import REWRITES

_TARGETS = {value.name: value for value in vars(targets).values() if isinstance(value, Target)}
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
    name: str,
) -> None:
    case = NPU[name]
    constants = _W + (f", {case.constants}" if case.constants else "")
    first = "c = Conv <kernel_shape=[1,1]> (x, w)"
    if name == "Add constant":  # directly after the convolution it would become its bias
        first += "\n r = Relu(c)"
    model = normalized_graph(
        f"{_IMAGE} x",
        f"float[?,?,?,?] z {{ {first}\n y = {case.op}\n z = Conv <kernel_shape=[1,1]> (y, w) }}",
        constants,
    )

    plan = plan_for(model, QUARK_EXTENDED)

    own = {t.name for t in plan.activations() if t.leader == t.name}
    shared = {t.name for t in plan.activations() if t.leader != t.name}
    assert own == set(case.own.split())
    assert shared == set(case.shared.split())
    assert {t.name for t in plan.weights()} == {"w", *case.weights.split()}


@pytest.mark.parametrize("name", _TARGETS)
def test_targets_speak_of_operators_and_rewrites_that_exist(name: str) -> None:
    target = _TARGETS[name]

    mentioned = {
        *target.operators,
        *target.shares,
        *(op for alignment in target.align for op in alignment.operators),
        *(op for pair in target.fuse for op in (*pair.producers, *pair.consumers)),
    }
    assert target.description
    assert mentioned <= set(OPERATORS)
    assert {*target.transforms, *target.arithmetic} <= set(REWRITES)
    assert target.limits is None or target.power_of_two


@pytest.mark.parametrize(
    "target", [QUARK_STANDARD, QUARK_STANDARD_SYMMETRIC, QUARK_EXTENDED, QUARK_NPU_CNN]
)
def test_a_flows_target_is_found_by_its_name(target: Target) -> None:
    assert find_target(target.name) is target


def test_the_npu_has_operators_that_the_standard_flow_leaves_in_float() -> None:
    only = set(QUARK_NPU_CNN.operators) - set(QUARK_STANDARD.operators)

    assert only == set(
        "HardSigmoid Div Erf Sub Min Max ReduceMean DepthToSpace SpaceToDepth Slice PRelu "
        "LpNormalization".split()
    )
    assert set(QUARK_STANDARD.operators) <= set(QUARK_NPU_CNN.operators)


_FUSED = """float[1,2,4,4] y {
    c = Conv <kernel_shape=[1,1]> (x, w)
    r = Clip (c, lo, hi)
    s = Sigmoid (r)
    t = Relu (s)
    y = Conv <kernel_shape=[1,1]> (t, w)
}"""


@pytest.mark.parametrize(
    ("target", "clip", "between"),
    [
        # The asymmetric flow fuses any operator with a Relu or Clip, the symmetric one layers with
        # a ReLU or ReLU6.
        (QUARK_STANDARD, "-1.0, 1.0", ""),
        (QUARK_STANDARD_SYMMETRIC, "-1.0, 1.0", "c s"),
        (QUARK_STANDARD_SYMMETRIC, "0.0, 6.0", "s"),
        (QUARK_NPU_CNN, "0.0, 1.0", "s"),
        (QUARK_BLOCK, "0.0, 6.0", "c s"),
    ],
)
def test_flows_fuse_other_activations(target: Target, clip: str, between: str) -> None:
    low, high = clip.split(", ")
    model = normalized_graph(
        f"{_IMAGE} x", _FUSED, f"{_W}, float lo = {{{low}}}, float hi = {{{high}}}"
    )
    spec = {"activation": BLOCKS["BFP16"], "weight": BLOCKS["BFP16"], "bias": None}

    plan = plan_for(model, target, **(spec if target is QUARK_BLOCK else {}))

    assert {t.name for t in plan.activations()} == {"x", "r", "t", "y", *between.split()}


@pytest.mark.parametrize(
    ("target", "rule"), [(QUARK_EXTENDED, "output"), (QUARK_NPU_CNN, "lowest")]
)
def test_concats_are_aligned_through_fused_relus(target: Target, rule: AlignRule) -> None:
    model = normalized_graph(
        "float[1,2,4,4] x",
        """float[1,4,4,4] y {
            a = Conv <kernel_shape=[1,1]> (x, w)
            b = Relu (a)
            y = Concat <axis=1> (b, x)
        }""",
        _W,
    )

    groups = [g for g in plan_for(model, target).groups if g.op_type == "Concat"]

    assert [(g.rule, g.inputs, g.outputs) for g in groups] == [(rule, ("b", "x"), ("y",))]


@pytest.mark.parametrize("target", [QUARK_STANDARD, QUARK_EXTENDED, QUARK_NPU_CNN])
def test_softmax_has_a_fixed_range(target: Target) -> None:
    model = normalized_graph(
        "float[1,2] x",
        "float[1,2] y { m = MatMul (x, w)\n y = Softmax (m) }",
        "float[2,2] w = {1.0, 2.0, 3.0, 4.0}",
    )

    assert plan_for(model, target).by_name()["y"].range == (0.0, 1.0)


def test_blocks_lie_along_the_channels() -> None:
    model = normalized_graph(
        "float[1,2,4,4] x",
        """float[1,3] y {
            c = ConvTranspose(x, w)
            p = GlobalAveragePool(c)
            f = Flatten(p)
            y = Gemm(f, v, b)
        }""",
        "float[2,3,1,1] w = {1,2,3,4,5,6}, float[3,3] v = {1,2,3,4,5,6,7,8,9}, "
        "float[3] b = {1,2,3}",
    )
    spec = BLOCKS["BFP16"]

    plan = plan_for(model, QUARK_BLOCK, activation=spec, weight=spec, bias=spec)
    axes = {tensor.name: tensor.axis for tensor in plan.tensors}

    assert (axes["w"], axes["v"], axes["b"]) == (1, 0, 0)
