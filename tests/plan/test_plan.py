from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lowbit.errors import PlanError
from lowbit.planning import Plan
from lowbit.planning.plan import load_plan, save_plan

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
