"""Nodes that a datapath limits, found in terms of planned tensors."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lowbit.config.presets import find_preset
from lowbit.config.specs import TensorOverride
from lowbit.scales.limited_nodes import find_limited, planned_output
from lowbit.scales.shift_limits import Limited
from lowbit.targets.target import ShiftLimits

_CONFIG = msgspec.structs.replace(find_preset("XINT8"), head="int8")
_NET = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,2,4,4] x) => (float[1,2,4,4] y)
<float[2,2,1,1] w = {1.0, -2.0, 3.0, 0.5}, float[2] b = {0.5, -0.5}>
{
    c = Conv <kernel_shape = [1, 1]> (x, w, b)
    r = Relu (c)
    l = Conv <kernel_shape = [1, 1]> (r, w, b)
    k = LeakyRelu <alpha = 0.1> (l)
    g = Sigmoid (k)
    s = Mul (k, g)
    y = Add (s, r)
}
"""


_LIMITS = ShiftLimits()


def _found(solve_text: Callable, limits: ShiftLimits = _LIMITS) -> dict[str, Limited]:
    state = solve_text(_NET, _CONFIG)
    return {n.op_type + n.output: n for n in find_limited(state.adapted, state.plan, limits)}


def test_a_relu_after_a_convolution_holds_its_output(solve_text: Callable) -> None:
    conv = _found(solve_text)["Convr"]

    assert conv.inputs == ("x",)
    assert conv.weight == "w"
    assert conv.has_bias
    assert not conv.before_leaky_relu


def test_a_leaky_relu_is_noted_for_the_bias(solve_text: Callable) -> None:
    assert _found(solve_text)["Convk"].before_leaky_relu


def test_a_value_times_its_own_gate_is_a_swish(solve_text: Callable) -> None:
    found = _found(solve_text)

    assert found["Muls"].is_swish
    assert found["HardSigmoidg"].inputs == ("k",)
    assert set(found["Addy"].inputs) == {"s", "r"}


def test_the_devices_own_factors_are_no_nodes_of_their_own(solve_text: Callable) -> None:
    assert len(_found(solve_text)) == 5


def test_what_is_quantized_nowhere_after_a_node_is_unknown(solve_text: Callable) -> None:
    state = solve_text(_NET, _CONFIG)
    conv = next(node for node in state.adapted.graph if node.op_type == "Conv")

    assert planned_output(conv, {"r"}) == "r"
    assert planned_output(conv, {"y"}) is None


def test_nodes_that_consume_or_produce_floats_are_not_limited(solve_text: Callable) -> None:
    in_float = msgspec.structs.replace(
        _CONFIG,
        tensors=(
            TensorOverride(tensor="x", keep="float"),
            TensorOverride(tensor="y", keep="float"),
        ),
    )
    state = solve_text(_NET, in_float)

    found = {n.op_type + n.output for n in find_limited(state.adapted, state.plan, _LIMITS)}

    assert found == {"Convk", "HardSigmoidg", "Muls"}


def test_the_target_says_which_operators_accumulate(solve_text: Callable) -> None:
    found = _found(solve_text, ShiftLimits(accumulating=("Gemm",)))

    assert set(found) == {"HardSigmoidg", "Muls", "Addy"}
