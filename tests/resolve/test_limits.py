"""Bounds of shifters, met on positions alone."""

from __future__ import annotations

import pytest

from lowbit.errors import CalibrationError
from lowbit.scales.shift_limits import Limited, bounded_bias, satisfy, violations
from lowbit.targets.target import ShiftLimits

LIMITS = ShiftLimits()


def _add(*inputs: str, op: str = "Add") -> Limited:
    return Limited("n", op, inputs, "y")


def _conv(node: str = "n", source: str = "x", weight: str = "w", output: str = "y") -> Limited:
    return Limited(node, "Conv", (source,), output, weight)


def _solved(
    nodes: list[Limited],
    positions: dict[str, int],
    groups: list[tuple[str, ...]] | None = None,
    limits: ShiftLimits = LIMITS,
    *,
    prefer_lowering: bool = True,
) -> dict[str, int]:
    solved, moved = satisfy(nodes, positions, groups or [], limits, prefer_lowering=prefer_lowering)
    assert violations(nodes, solved, limits) == []
    assert {m.tensor: m.after for m in moved} == {
        name: p for name, p in solved.items() if p != positions[name]
    }
    assert all(m.why and m.before == positions[m.tensor] for m in moved)
    return solved


def test_what_holds_already_is_left_alone() -> None:
    positions = {"a": 5, "b": 3, "y": 4}

    assert _solved([_add("a", "b")], positions) == positions


def test_the_finer_addend_is_lowered_to_the_reach_of_the_read_shifter() -> None:
    assert _solved([_add("a", "b")], {"a": 12, "b": 3, "y": 4}) == {"a": 10, "b": 3, "y": 4}


def test_subtraction_is_read_limited_but_not_write_limited() -> None:
    node = _add("a", "b", op="Sub")

    assert _solved([node], {"a": 12, "b": 3, "y": -40}) == {"a": 10, "b": 3, "y": -40}


def test_an_output_finer_than_the_sum_allows_is_lowered() -> None:
    assert _solved([_add("a", "b")], {"a": 2, "b": 2, "y": 12})["y"] == 9


def test_an_output_too_coarse_lowers_the_addends_unless_raising_is_preferred() -> None:
    positions = {"a": 20, "b": 20, "y": -10}

    assert _solved([_add("a", "b")], positions) == {"a": 15, "b": 15, "y": -10}
    raised = _solved([_add("a", "b")], positions, prefer_lowering=False)
    assert raised == {"a": 20, "b": 20, "y": -5}


@pytest.mark.parametrize(
    ("a", "b", "y", "expected"),
    [
        (3, 4, 9, {"a": 3, "b": 4, "y": 7}),
        (20, 18, 2, {"a": 16, "b": 18, "y": 2}),
        (5, 5, 3, {"a": 5, "b": 5, "y": 3}),
    ],
)
def test_products_shift_by_the_sum_of_positions(
    a: int, b: int, y: int, expected: dict[str, int]
) -> None:
    assert _solved([_add("a", "b", op="Mul")], {"a": a, "b": b, "y": y}) == expected


def test_a_swish_has_a_narrower_shifter() -> None:
    node = Limited("n", "Mul", ("x", "g"), "y", is_swish=True)

    solved = _solved([node], {"x": 10, "g": 7, "y": 0})

    assert solved["x"] + solved["g"] - solved["y"] <= 15


@pytest.mark.parametrize(("weight", "expected"), [(-9, -2), (30, 14), (5, 5)])
def test_a_convolution_moves_its_weight_only(weight: int, expected: int) -> None:
    solved = _solved([_conv()], {"x": 6, "w": weight, "y": 4})

    assert solved == {"x": 6, "w": expected, "y": 4}


def test_a_weight_shared_by_unlike_convolutions_pulls_their_tensors_together() -> None:
    nodes = [_conv("n", "a", "w", "b"), _conv("m", "c", "w", "d")]

    solved = _solved(nodes, {"a": 20, "w": 7, "b": -10, "c": -10, "d": 20})

    assert solved["w"] + solved["a"] - solved["b"] <= 16


@pytest.mark.parametrize(("source", "gate"), [(-12, 20), (40, 3), (3, 8)])
def test_a_gate_has_absolute_bounds(source: int, gate: int) -> None:
    solved = _solved([Limited("n", "HardSigmoid", ("x",), "g")], {"x": source, "g": gate})

    assert 0 <= solved["x"] <= 15
    assert solved["g"] >= 7
    assert 0 <= 14 + solved["x"] - solved["g"] <= 31


def test_groups_take_the_coarsest_position() -> None:
    assert _solved([], {"a": 9, "b": 2, "c": 4}, [("a", "b", "c")]) == {"a": 2, "b": 2, "c": 2}


def test_a_gate_joined_to_a_coarse_tensor_raises_it() -> None:
    """Lowering alone cannot end: the group wants the coarse position, the gate a fine one."""
    nodes = [Limited("n", "HardSigmoid", ("x",), "g")]

    solved = _solved(nodes, {"x": 3, "g": 7, "big": -9}, [("g", "big")])

    assert solved["g"] == solved["big"] >= 7


def test_an_addend_of_a_gate_input_is_raised_as_far_as_it_must() -> None:
    nodes = [Limited("n", "HardSigmoid", ("x",), "g"), Limited("m", "Add", ("x", "big"), "y")]

    solved = _solved(nodes, {"x": 4, "g": 7, "big": -20, "y": -20})

    assert solved["big"] == -7
    assert solved["x"] == 0


def test_what_is_not_tied_to_a_conflict_is_not_pulled() -> None:
    nodes = [Limited("n", "HardSigmoid", ("x",), "g"), _conv("m", "x", "w", "far")]

    solved = _solved(nodes, {"x": 3, "g": 7, "big": -9, "w": 2, "far": -30}, [("g", "big")])

    assert solved["far"] == -30


def test_limits_nothing_can_meet_name_the_node_and_the_way_out() -> None:
    impossible = ShiftLimits(hardsigmoid_input=(0, 1), hardsigmoid_output_low=20)

    with pytest.raises(CalibrationError, match=r"'gate'.*--exclude 'gate'"):
        satisfy([Limited("gate", "HardSigmoid", ("x",), "g")], {"x": 0, "g": 7}, [], impossible)


@pytest.mark.parametrize(
    ("position", "leaky", "expected"),
    [(-20, False, 0), (11, False, 11), (40, False, 15 + 9), (40, True, 15)],
)
def test_a_bias_stays_within_its_own_shift(position: int, leaky: bool, expected: int) -> None:
    node = Limited("n", "Conv", ("x",), "y", "w", before_leaky_relu=leaky)
    positions = {"x": 8, "w": 7, "y": 8}  # a product at 15 and a cut of 7

    assert bounded_bias(node, positions, position, LIMITS) == expected


def test_other_nodes_do_not_bound_biases() -> None:
    assert bounded_bias(_add("a", "b"), {}, 99, LIMITS) == 99


def test_violations_name_node_bound_and_value() -> None:
    assert violations([_conv()], {"x": 20, "w": 7, "y": 0}, LIMITS) == [
        ("n", "shift cut is 27, allowed 0..16")
    ]


def test_renaming_follows_every_tensor() -> None:
    renamed = _conv().renamed({"x": "a", "w": "b", "y": "c"})

    assert renamed.tensors() == ("a", "c", "b")
