from __future__ import annotations

from collections.abc import Callable

import msgspec

from lowbit.config.presets import find_preset
from lowbit.config.specs import TensorOverride
from lowbit.scales.limited_nodes import find_limited, planned_output

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


def _found(run_stages: Callable) -> dict:
    stages = run_stages(_NET, _CONFIG)
    return {n.op_type + n.output: n for n in find_limited(stages.model, stages.plan)}


def test_a_relu_behind_a_convolution_holds_its_output(run_stages: Callable) -> None:
    conv = _found(run_stages)["Convr"]

    assert conv.inputs == ("x",)
    assert conv.weight == "w"
    assert conv.has_bias
    assert not conv.before_leaky_relu


def test_a_leaky_relu_is_noted_for_the_bias(run_stages: Callable) -> None:
    assert _found(run_stages)["Convk"].before_leaky_relu


def test_a_value_times_its_own_gate_is_a_swish(run_stages: Callable) -> None:
    found = _found(run_stages)

    assert found["Muls"].is_swish
    assert found["HardSigmoidg"].inputs == ("k",)
    assert set(found["Addy"].inputs) == {"s", "r"}


def test_the_devices_own_factors_are_no_nodes_of_their_own(run_stages: Callable) -> None:
    assert len(_found(run_stages)) == 5


def test_what_is_quantized_nowhere_behind_a_node_is_unknown(run_stages: Callable) -> None:
    stages = run_stages(_NET, _CONFIG)
    conv = next(node for node in stages.model.graph if node.op_type == "Conv")

    assert planned_output(conv, {"r"}) == "r"
    assert planned_output(conv, {"y"}) is None


def test_nodes_that_read_or_write_floats_are_not_limited(run_stages: Callable) -> None:
    in_float = msgspec.structs.replace(
        _CONFIG,
        tensors=(
            TensorOverride(tensor="x", keep="float"),
            TensorOverride(tensor="y", keep="float"),
        ),
    )
    stages = run_stages(_NET, in_float)

    found = {n.op_type + n.output for n in find_limited(stages.model, stages.plan)}

    assert found == {"Convk", "HardSigmoidg", "Muls"}
