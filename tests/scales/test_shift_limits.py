"""Bounds of shifters, met on fraction bits alone, and obeyed by whole networks.

Whatever the network and its magnitudes, an emitted XINT8 model obeys the datapath: that is checked on
the scales of the emitted file, not by the code that established them.
"""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from helpers.random_networks import Emitted, random_network
from helpers.staged import solved
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.errors import CalibrationError
from lowbit.graph import io
from lowbit.graph.editing import constant
from lowbit.pipeline import stages
from lowbit.scales.shift_limits import Limited, bounded_bias, satisfy, violations
from lowbit.state import Quantized
from lowbit.targets.target import ShiftLimits

LIMITS = ShiftLimits()


def _add(*inputs: str, op: str = "Add") -> Limited:
    return Limited("n", op, inputs, "y")


def _conv(node: str = "n", source: str = "x", weight: str = "w", output: str = "y") -> Limited:
    return Limited(node, "Conv", (source,), output, weight)


def _solved(
    nodes: list[Limited],
    bits: dict[str, int],
    groups: list[tuple[str, ...]] | None = None,
    limits: ShiftLimits = LIMITS,
    *,
    prefer_lowering: bool = True,
) -> dict[str, int]:
    solved, moved = satisfy(nodes, bits, groups or [], limits, prefer_lowering=prefer_lowering)
    assert violations(nodes, solved, limits) == []
    assert {m.tensor: m.after for m in moved} == {
        name: new for name, new in solved.items() if new != bits[name]
    }
    assert all(m.why and m.before == bits[m.tensor] for m in moved)
    return solved


def test_what_holds_already_is_left_alone() -> None:
    bits = {"a": 5, "b": 3, "y": 4}

    assert _solved([_add("a", "b")], bits) == bits


def test_the_finer_addend_is_lowered_to_the_reach_of_the_read_shifter() -> None:
    assert _solved([_add("a", "b")], {"a": 12, "b": 3, "y": 4}) == {"a": 10, "b": 3, "y": 4}


def test_subtraction_is_read_limited_but_not_write_limited() -> None:
    node = _add("a", "b", op="Sub")

    assert _solved([node], {"a": 12, "b": 3, "y": -40}) == {"a": 10, "b": 3, "y": -40}


def test_an_output_finer_than_the_sum_allows_is_lowered() -> None:
    assert _solved([_add("a", "b")], {"a": 2, "b": 2, "y": 12})["y"] == 9


def test_an_output_too_coarse_lowers_the_addends_unless_raising_is_preferred() -> None:
    bits = {"a": 20, "b": 20, "y": -10}

    assert _solved([_add("a", "b")], bits) == {"a": 15, "b": 15, "y": -10}
    raised = _solved([_add("a", "b")], bits, prefer_lowering=False)
    assert raised == {"a": 20, "b": 20, "y": -5}


@pytest.mark.parametrize(
    ("a", "b", "y", "expected"),
    [
        (3, 4, 9, {"a": 3, "b": 4, "y": 7}),
        (20, 18, 2, {"a": 16, "b": 18, "y": 2}),
        (5, 5, 3, {"a": 5, "b": 5, "y": 3}),
    ],
)
def test_products_shift_by_the_sum_of_fraction_bits(
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


def test_groups_take_the_fewest_fraction_bits() -> None:
    assert _solved([], {"a": 9, "b": 2, "c": 4}, [("a", "b", "c")]) == {"a": 2, "b": 2, "c": 2}


def test_a_gate_joined_to_a_coarse_tensor_raises_it() -> None:
    """Lowering alone cannot end: the group wants few fraction bits, the gate many."""
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
    ("wanted", "leaky", "expected"),
    [(-20, False, 0), (11, False, 11), (40, False, 15 + 9), (40, True, 15)],
)
def test_a_bias_stays_within_its_own_shift(wanted: int, leaky: bool, expected: int) -> None:
    node = Limited("n", "Conv", ("x",), "y", "w", before_leaky_relu=leaky)
    bits = {"x": 8, "w": 7, "y": 8}  # a product with 15 and a cut of 7

    assert bounded_bias(node, bits, wanted, LIMITS) == expected


def test_other_nodes_do_not_bound_biases() -> None:
    assert bounded_bias(_add("a", "b"), {}, 99, LIMITS) == 99


def test_violations_name_node_bound_and_value() -> None:
    assert violations([_conv()], {"x": 20, "w": 7, "y": 0}, LIMITS) == [
        ("n", "shift cut is 27, allowed 0..16")
    ]


def test_renaming_follows_every_tensor() -> None:
    renamed = _conv().renamed({"x": "a", "w": "b", "y": "c"})

    assert renamed.tensors() == ("a", "c", "b")


def test_members_of_a_group_that_no_bound_lets_be_equal_are_named() -> None:
    """A gate and a product whose bounds leave no number of fraction bits for a group."""
    impossible = ShiftLimits(hardsigmoid_output_low=12, swish=(0, 3), write_mul=(0, 3))
    nodes = [
        Limited("gate", "HardSigmoid", ("x",), "g"),
        Limited("m", "Mul", ("x", "g"), "y", is_swish=True),
    ]

    with pytest.raises(CalibrationError, match=r"no scales satisfy the datapath at node '"):
        satisfy(nodes, {"x": 3, "g": 12, "y": 3}, [("y", "x")], impossible)


# Bias correction moves biases on purpose; a head kept in float would hide what is to be tested.
CONFIG = msgspec.structs.replace(find_preset("XINT8"), bias_correction=False, head="int8")
_ALIGNED = ("Concat", "MaxPool", "AveragePool", "GlobalAveragePool")


def _emit(seed: int, *, bias_correction: bool = False) -> tuple[Quantized, onnx.ModelProto]:
    state = solved(*_network(seed))
    if bias_correction:
        state = stages.correct_biases(state)
    emitted = stages.emit(state)
    return emitted, io.to_proto(emitted.emitted.model)


def _network(seed: int) -> tuple[onnx.ModelProto, QuantConfig, list[dict[str, np.ndarray]]]:
    model, feeds = random_network(seed)
    return model, CONFIG, feeds


def _broken(emitted: Emitted, node: onnx.NodeProto) -> list[str]:
    """Return the bounds of the datapath that a node of the emitted graph breaks."""
    inputs = [emitted.bits_of_input(name) for name in node.input]
    output = emitted.bits_of_output(node.output[0])
    if output is None or any(bits is None for bits in inputs):
        return []
    bounds: list[tuple[str, int, int, int]] = []
    match node.op_type:
        case "Add" | "Sub":
            bounds.append(("read", max(inputs) - min(inputs), 0, 7))
            if node.op_type == "Add":
                bounds.append(("write", min(inputs) - output, -7, 25))
        case "Mul":
            swish = emitted.is_swish(node)
            bounds.append(("write", sum(inputs) - output, 0, 15 if swish else 32))
        case "HardSigmoid":
            bounds.append(("input", inputs[0], 0, 15))
            bounds.append(("output", output, 7, 1000))
            bounds.append(("shift", 14 + inputs[0] - output, 0, 31))
        case "Conv" | "Gemm":
            cut = inputs[0] + inputs[1] - output
            bounds.append(("cut", cut, 0, 16))
            if len(inputs) > 2:
                follower = emitted.consumers[node.output[0]][0].op_type
                low = 0 if follower == "LeakyRelu" else min(0, -(24 - (8 + cut)))
                bounds.append(("bias", inputs[0] + inputs[1] - inputs[2], low, 15))
    return [
        f"{node.name}: {what} {v} not in {a}..{b}" for what, v, a, b in bounds if not a <= v <= b
    ]


def _assert_nearest(codes: np.ndarray, scale: float, values: np.ndarray) -> None:
    """Every value is within half a step of its code, or beyond the last code and saturated."""
    error = np.abs(codes.astype(np.float64) * scale - values)
    saturated = (np.abs(codes) == 127) & (np.abs(values) >= 127 * scale)
    assert (saturated | (error <= scale / 2 * (1 + 1e-6))).all()
    assert (np.sign(values[saturated]) == np.sign(codes[saturated])).all()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_emitted_networks_obey_every_limit(seed: int) -> None:
    _, model = _emit(seed)

    emitted = Emitted(model)
    assert all(np.frexp(scale)[0] == 0.5 for scale in emitted.scales())
    assert [b for node in emitted.computing() for b in _broken(emitted, node)] == []
    for node in emitted.computing():
        if node.op_type in _ALIGNED:
            around = {emitted.bits_of_input(name) for name in node.input}
            assert around == {emitted.bits_of_output(node.output[0])}
    limited = [n for n in emitted.computing() if n.op_type in ("Conv", "Add", "Sub", "Mul")]
    assert any(emitted.bits_of_input(n.input[0]) is not None for n in limited)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_stored_integers_stand_for_the_float_weights_and_biases(seed: int) -> None:
    state, model = _emit(seed)

    emitted = Emitted(model)
    originals = {node.name: node for node in state.adapted.graph}
    compared = 0
    for node in emitted.computing():
        for index, name in enumerate(node.input):
            stored = emitted.constant(name)
            if stored is not None:
                values = constant(originals[node.name].inputs[index])
                _assert_nearest(*stored, np.asarray(values, np.float64))
                compared += 1
    assert compared > 0


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_bias_correction_keeps_the_limits(seed: int) -> None:
    _, model = _emit(seed, bias_correction=True)

    emitted = Emitted(model)
    assert [b for node in emitted.computing() for b in _broken(emitted, node)] == []


def test_a_bound_that_contradicts_a_group_wins_at_its_own_tensor_where_the_target_says_so() -> None:
    gate = Limited("gate", "HardSigmoid", ("s",), "scores")
    bits = {"s": 4, "scores": 8, "boxes": -2, "y": -2}
    group = [("boxes", "scores", "y")]

    pulled, _ = satisfy([gate], bits, group, LIMITS, prefer_lowering=False)
    keeping = msgspec.structs.replace(LIMITS, contradictions="keep")
    kept, moved = satisfy([gate], bits, group, keeping, prefer_lowering=False)

    assert pulled["boxes"] == pulled["scores"] == pulled["y"] == 7
    assert kept == {"s": 4, "scores": 7, "boxes": -2, "y": -2}
    assert [row.tensor for row in moved] == ["scores"]
    # What can be satisfied is, whatever is done otherwise.
    reach = {"s": 4, "scores": 9, "boxes": 8, "y": 8}
    both = [
        satisfy([gate], reach, group, how, prefer_lowering=False)[0] for how in (LIMITS, keeping)
    ]
    assert both[0] == both[1]
