from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import onnx_ir as ir
import pytest

from lowbit.config.specs import IntegerSpec
from lowbit.errors import PlanError
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning import Plan
from lowbit.planning.plan import check_fit

Edited = tuple[ir.Model, Plan]


@pytest.fixture
def fitting(graph_of: Callable, plan_of: Callable) -> Edited:
    model = graph_of(
        "float[1,2,4,4] x",
        "float[?,?,?,?] y { c = Conv <kernel_shape=[1,1]> (x, w, b)\n"
        " y = MaxPool <kernel_shape=[2,2]> (c) }",
        "float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}, float[2] b = {0.1, 0.2}",
    )
    return model, plan_of(model)


def _edit(plan: Plan, which: str, **changes: Any) -> Plan:
    tensors = tuple(
        msgspec.structs.replace(t, **changes) if t.name == which else t for t in plan.tensors
    )
    return msgspec.structs.replace(plan, tensors=tensors)


def test_a_plan_as_made_fits(fitting: Edited) -> None:
    model, plan = fitting

    check_fit(plan, model)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("x", {"name": "xx"}, "'xx', which the model does not have"),
        ("c", {"role": "weight"}, "as a weight, but it is computed"),
        ("y", {"leader": "zzz"}, "uses the parameters of 'zzz'"),
        ("c", {"leader": "y"}, "uses the parameters of"),
        ("y", {"spec": IntegerSpec(format=IntegerFormat.INT16)}, "'y' is int16 but uses .* 'c'"),
        ("x", {"name": "c"}, "lists a tensor twice"),
    ],
)
def test_edits_that_contradict_are_named(
    fitting: Edited, name: str, changes: dict[str, Any], message: str
) -> None:
    model, plan = fitting

    with pytest.raises(PlanError, match=message):
        check_fit(_edit(plan, name, **changes), model)


def test_an_empty_plan_is_refused(fitting: Edited) -> None:
    model, plan = fitting

    with pytest.raises(PlanError, match="nothing would be quantized"):
        check_fit(msgspec.structs.replace(plan, tensors=()), model)


def test_a_bias_whose_input_was_taken_out_is_named(fitting: Edited) -> None:
    model, plan = fitting
    without = tuple(t for t in plan.tensors if t.name != "x")

    with pytest.raises(PlanError, match="scaled by 'x', which is not in the plan"):
        check_fit(msgspec.structs.replace(plan, tensors=without), model)


def test_a_bias_of_an_unknown_node_is_named(fitting: Edited) -> None:
    model, plan = fitting
    row = msgspec.structs.replace(plan.biases[0], node="nowhere")

    with pytest.raises(PlanError, match="bias for node 'nowhere'"):
        check_fit(msgspec.structs.replace(plan, biases=(row,)), model)
