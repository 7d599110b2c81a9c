from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from lowbit.config.specs import IntegerSpec, Rule
from lowbit.errors import ConfigError, PlanError
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning.rules import matches_name

_INT16 = IntegerSpec(format=IntegerFormat.INT16)
_UINT8 = IntegerSpec(format=IntegerFormat.UINT8, symmetric=False)


@pytest.fixture
def chain(graph_of: Callable) -> ir.Model:
    return graph_of(
        "float[1,2,4,4] x",
        """float[1,2,4,4] e {
            a = Conv <kernel_shape=[1,1]> (x, w)
            b = Sigmoid (a)
            c = Conv <kernel_shape=[1,1]> (b, w)
            d = Sigmoid (c)
            e = Conv <kernel_shape=[1,1]> (d, w)
        }""",
        "float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}",
    )


def _formats(plan: object) -> dict[str, str]:
    return {t.name: t.spec.format.value for t in plan.activations()}  # type: ignore[attr-defined]


def _float(plan: object) -> set[str]:
    return {n.node for n in plan.float_nodes}  # type: ignore[attr-defined]


def test_a_rule_by_type_holds_for_inputs_and_outputs(chain: ir.Model, plan_of: Callable) -> None:
    plan = plan_of(chain, rules=(Rule(op_type="Sigmoid", activation=_INT16),))

    assert _formats(plan) == {
        "x": "int8",
        "a": "int16",
        "b": "int16",
        "c": "int16",
        "d": "int16",
        "e": "int8",
    }


def test_the_last_matching_rule_wins(chain: ir.Model, plan_of: Callable) -> None:
    rules = (Rule(op_type="*", activation=_INT16), Rule(name="e", activation=_UINT8))

    formats = _formats(plan_of(chain, rules=rules))

    assert formats["x"] == "int16"
    assert formats["e"] == formats["d"] == "uint8"


def test_a_rule_may_bring_back_what_an_earlier_one_excluded(
    chain: ir.Model, plan_of: Callable
) -> None:
    rules = (Rule(op_type="Conv", exclude=True), Rule(name="c", activation=_INT16))

    names = {node.outputs[0].name: node.name for node in chain.graph}
    assert _float(plan_of(chain, rules=rules)) == {names["a"], names["e"]}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("b", "b"), ("[bd]", "bd"), ("re:^[ce]$", "ce"), ("?", "abcde")],
)
def test_excluding_by_glob_or_regular_expression(
    chain: ir.Model, plan_of: Callable, pattern: str, expected: str
) -> None:
    plan = plan_of(chain, exclude=(pattern,))

    names = {node.outputs[0].name: node.name for node in chain.graph}
    assert _float(plan) == {names[output] for output in expected}
    assert all(pattern in node.why for node in plan.float_nodes)


def test_including_leaves_all_others_in_float(chain: ir.Model, plan_of: Callable) -> None:
    plan = plan_of(chain, include=("a",))

    assert set(_formats(plan)) == {"x", "a"}


def test_a_subgraph_is_what_lies_between_its_ends(chain: ir.Model, plan_of: Callable) -> None:
    plan = plan_of(chain, rules=(Rule(start=("b",), end=("d",), exclude=True),))

    names = {node.outputs[0].name: node.name for node in chain.graph}
    assert _float(plan) == {names["b"], names["c"], names["d"]}


@pytest.mark.parametrize(("start", "end", "expected"), [("d", "", "de"), ("", "b", "ab")])
def test_an_open_subgraph_reaches_to_the_end_of_the_graph(
    chain: ir.Model, plan_of: Callable, start: str, end: str, expected: str
) -> None:
    rule = Rule(start=(start,) if start else (), end=(end,) if end else (), exclude=True)

    names = {node.outputs[0].name: node.name for node in chain.graph}
    assert _float(plan_of(chain, rules=(rule,))) == {names[o] for o in expected}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ("Sigmoid_*x",)}, "no node is called 'Sigmoid_\\*x'"),
        ({"include": ("nothing",)}, "no node is called 'nothing'; `lowbit plan MODEL"),
        ({"rules": (Rule(op_type="Convv", exclude=True),)}, "no Convv node; did you mean 'Conv'"),
        ({"rules": (Rule(start=("zz",), exclude=True),)}, "no node is called 'zz'"),
    ],
)
def test_patterns_that_match_nothing_are_errors_with_the_nearest_names(
    chain: ir.Model, plan_of: Callable, options: dict, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        plan_of(chain, **options)


def test_names_with_brackets_match_themselves() -> None:
    assert matches_name("layer[0]/conv", ["layer[0]/conv"])
    assert not matches_name("layer[0]/conv", ["layer1/conv"])


def test_a_broken_regular_expression_is_named(chain: ir.Model, plan_of: Callable) -> None:
    with pytest.raises(ConfigError, match=r"re:\("):
        plan_of(chain, exclude=("re:(",))
