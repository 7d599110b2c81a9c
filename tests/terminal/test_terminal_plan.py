"""A plan's tables, from a plan made by hand."""

from __future__ import annotations

import pytest

from lowbit.config.specs import IntegerSpec, ProductBias
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning import AlignedGroup, BiasPlan, FloatNode, Plan, TensorPlan
from lowbit.report.plan import describe_bias, show_plan
from lowbit.targets import find_target

INT8 = IntegerSpec(format=IntegerFormat.INT8)


def tensor(name: str, **fields) -> TensorPlan:
    chosen = {"role": "activation", "spec": INT8, "leader": name, "observe": name, "why": "needed"}
    return TensorPlan(name=name, **{**chosen, **fields})


PLAN = Plan(
    preset="A8W8",
    target="onnxruntime",
    tensors=(
        tensor("x"),
        tensor("moved", leader="x", why="output of Reshape r; same numbers as x"),
        tensor("p", range=(0.0, 1.0)),
        tensor("/long" * 60, role="weight"),
    ),
    biases=(
        BiasPlan(
            node="conv", tensor="b", index=2, spec=ProductBias(), input="x", weight="w", why="bias"
        ),
    ),
    groups=(
        AlignedGroup(node="cat", op_type="Concat", rule="merged", inputs=("x",), outputs=("p",)),
    ),
    float_nodes=tuple(
        FloatNode(node=f"node{i}", op_type=f"Op{i % 6}", why="not known" if i < 9 else "excluded")
        for i in range(10)
    ),
)


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("everything", [False, True])
def test_every_decision_is_shown_within_the_width(console, width, everything) -> None:
    screen = console(width)

    show_plan(screen, PLAN, find_target("onnxruntime"), nodes=30, everything=everything)

    text = screen.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for words in (
        "3 activations, 1 weight, 1 bias",
        "10 of 30 nodes",
        "1 group of tensors",
        "int8 sym minmax 0..1",
        "int32 product",
        "output of Reshape r",
        "Op0 x2, Op1 x2, Op2 x2, Op3, ...",
        "stays in float, on the CPU",
    ):
        assert words in text
    assert "same numbers as" not in text
    assert ("node7" in text) == everything
    assert text.index("not known") < text.index("excluded")


def test_a_bias_is_described_by_its_kind() -> None:
    assert describe_bias(None) == "float"
    assert describe_bias(ProductBias()) == "int32 product"
    assert describe_bias(INT8) == "int8 sym minmax"
