from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir
import pytest

from lowbit.config.specs import BLOCKS, FloatSpec, IntegerSpec, Spec
from lowbit.errors import PlanError
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.planning import AlignedGroup, Plan, TensorPlan
from lowbit.planning.plan import check_fit, load_plan, save_plan

_NET = """float[1,4,4,4] y {
    c = Conv <kernel_shape=[1,1]> (x, w, b)
    e = Exp (c)
    y = Concat <axis=1> (e, c)
}"""
_CONSTANTS = "float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}, float[2] b = {0.1, 0.2}"


@pytest.fixture
def plan(graph_of: Callable, plan_of: Callable) -> Plan:
    return plan_of(graph_of("float[1,2,4,4] x", _NET, _CONSTANTS), "ryzen-ai")


def test_a_plan_comes_back_from_its_file(plan: Plan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.json")

    assert load_plan(tmp_path / "plan.json") == plan
    assert plan.groups
    assert plan.biases
    assert plan.float_nodes


def test_a_plan_file_is_for_people(plan: Plan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.json")

    text = (tmp_path / "plan.json").read_text()

    assert text.count("\n") > 50
    assert '"why": "input of Conv' in text


def test_the_statistics_a_plan_needs_are_those_of_leaders(plan: Plan) -> None:
    assert set(plan.observed()) <= {t.name for t in plan.activations()}
    assert {t.name for t in plan.weights()} == {"w"}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.replace(b'"name"', b'"nam"', 1), "nam"),
        (lambda text: text.replace(b'"int8"', b'"int9"', 1), "int9"),
        (lambda text: text[:-20], "is not JSON"),
        (lambda text: text.replace(b'"version": 1', b'"version": 99'), "version 99"),
    ],
)
def test_mistakes_in_an_edited_plan_are_named(
    plan: Plan, tmp_path: Path, edit: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    path.write_bytes(edit(path.read_bytes()))

    with pytest.raises(PlanError, match=message):
        load_plan(path)


def test_a_missing_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.json: No such file"):
        load_plan(tmp_path / "none.json")


def test_a_plan_is_a_value(plan: Plan) -> None:
    assert msgspec.structs.replace(plan, preset="other") != plan


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


def _tensor(name: str, spec: Spec, **fields: Any) -> TensorPlan:
    known = {"role": "activation", "leader": name, "observe": name, "why": ""}
    return TensorPlan(name=name, spec=spec, **{**known, **fields})


_INT8 = IntegerSpec(format=IntegerFormat.INT8)
_BF16 = FloatSpec(format=FloatFormat.BFLOAT16)
_SCALED = FloatSpec(format=FloatFormat.FLOAT16, scaled=True)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (_tensor("a", _INT8), True),
        (_tensor("a", _SCALED), True),
        (_tensor("a", _BF16), False),
        (_tensor("a", BLOCKS["BFP16"]), False),
        (_tensor("a", _INT8, range=(0.0, 1.0)), False),
        (_tensor("a", _INT8, leader="b"), False),
    ],
)
def test_parameters_follow_from_data_where_there_is_a_scale_to_find(
    tensor: TensorPlan, *, expected: bool
) -> None:
    assert tensor.is_calibrated is expected


def test_statistics_are_needed_of_calibrated_activations_alone() -> None:
    tensors = (
        _tensor("a", _INT8, observe="b"),
        _tensor("b", _INT8),
        _tensor("c", _BF16),
        _tensor("w", _INT8, role="weight"),
    )

    assert Plan(preset="", target="", tensors=tensors).observed() == ("b",)


def test_a_tensor_that_is_no_integer_says_so() -> None:
    assert _tensor("a", _INT8).integer is _INT8
    with pytest.raises(TypeError, match="'a' is bfloat16, which is not an integer"):
        _tensor("a", _BF16).integer  # noqa: B018


def test_the_plan_of_integers_keeps_groups_of_integers() -> None:
    def group(node: str, inputs: str, outputs: str) -> AlignedGroup:
        return AlignedGroup(
            node=node,
            op_type="Concat",
            rule="merged",
            inputs=tuple(inputs.split()),
            outputs=tuple(outputs.split()),
        )

    tensors = (
        _tensor("a", _INT8),
        _tensor("b", _BF16),
        _tensor("c", _INT8),
        _tensor("d", _BF16),
    )
    groups = (group("one", "a b", "c"), group("two", "b", "c"), group("three", "a", "d"))

    integers = Plan(preset="", target="", tensors=tensors, groups=groups).integers()

    assert [t.name for t in integers.tensors] == ["a", "c"]
    assert integers.groups == (group("one", "a", "c"),)


def test_a_bias_with_its_own_scale_fits_without_its_input(fitting: Edited) -> None:
    model, plan = fitting
    row = msgspec.structs.replace(plan.biases[0], spec=_INT8)
    without = tuple(t for t in plan.tensors if t.name != "x")

    check_fit(msgspec.structs.replace(plan, tensors=without, biases=(row,)), model)


def test_a_plan_that_is_no_text_is_named(tmp_path: Path) -> None:
    for content in (b'{"preset": "\xff"}', b'{"refinement"'):
        (tmp_path / "plan.json").write_bytes(content)

        with pytest.raises(PlanError, match="is not JSON"):
            load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tensor": "w"}, "has tensor 'w' in this plan"),
        ({"index": 9}, "has tensor 'b' in this plan, but the node has ''"),
        ({"factor": 1e300}, "has factor 1e\\+300"),
        ({"repeats": 0}, "has repeats 0"),
        ({"input": "c"}, "has input 'c'"),
        ({"weight": "x2"}, "has weight 'x2'"),
    ],
)
def test_facts_of_a_node_cannot_be_edited(fitting: Edited, change, words) -> None:
    model, plan = fitting
    row = msgspec.structs.replace(plan.biases[0], **change)

    with pytest.raises(PlanError, match=words):
        check_fit(msgspec.structs.replace(plan, biases=(row,)), model)


def test_axes_that_a_tensor_does_not_have_are_named(fitting: Edited) -> None:
    model, plan = fitting

    with pytest.raises(PlanError, match="along axis 7 in this plan, but it has 4 axes"):
        check_fit(_edit(plan, "w", axis=7), model)
