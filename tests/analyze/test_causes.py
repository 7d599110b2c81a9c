"""Why a tensor loses what it loses: numbers made by hand for each cause."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from helpers.quantizers import activation, scale, weight

from lowbit.analyze import causes
from lowbit.analyze.causes import SharedScale, activation_causes, find_shared_scales, weight_causes
from lowbit.analyze.observations import Observation
from lowbit.analyze.quantizers import Constant
from lowbit.graph import io


def found_in(x, shared=None, **more) -> dict[str, str]:
    """Return the causes of an activation, by name."""
    quantizer = activation(**more)
    seen = Observation(quantizer)
    seen.add(np.asarray(x, np.float32))
    return {cause.name: cause.detail for cause in activation_causes(quantizer, seen, shared)}


def test_values_beyond_the_range_are_named_with_their_share() -> None:
    x = np.concatenate([np.zeros(98), [40.0, -30.0]])

    found = found_in(x, step=0.1)

    assert found == {
        "clipped range": "2.00% of the values lie beyond -12.8..12.7, 100% of its error; "
        "they reach -30..40"
    }


def test_clipping_that_adds_little_is_not_named() -> None:
    # One value is a step beyond, all others are rounded by half a step.
    x = np.concatenate([np.full(500, 0.05), [12.8]])

    assert causes.CLIPPED not in found_in(x, step=0.1)


def test_an_outlier_channel_is_named() -> None:
    x = np.ones((1, 6, 4, 4))
    x[0, 4] = -12.5

    assert found_in(x, step=0.1)["outlier channel"] == (
        "channel 4 reaches 12.5, the median channel 1"
    )
    x[0, 4] = 7.5  # less than eight times the median
    assert "outlier channel" not in found_in(x, step=0.1)


def test_of_three_channels_none_is_an_outlier() -> None:
    assert "outlier channel" not in found_in([[1.0, 1.0, 12.0]], step=0.1)


def test_a_power_of_two_that_leaves_integers_unused_is_named() -> None:
    # 2**-4 holds -8 to 7.94; the values reach 5: the integers beyond 80 are unused.
    found = found_in(np.linspace(-5, 5, 50), step=2.0**-4)

    assert found == {"power-of-two rounding": "the power of two leaves 38% of the integers unused"}
    assert "power-of-two rounding" not in found_in(np.linspace(-7.9, 7.9, 50), step=2.0**-4)
    assert "power-of-two rounding" not in found_in(np.linspace(-5, 5, 50), step=0.0625001)


def test_a_shared_scale_is_named_with_whom_it_is_shared() -> None:
    shared = SharedScale("cat", "Concat", ("t", "boxes"))

    found = found_in(np.linspace(-1, 1, 50), shared, step=0.1)

    assert found == {"shared scale": "Concat cat gives it the scale of boxes, 12.8 times its own"}
    # Where the scale suits it, sharing is no reason.
    assert "shared scale" not in found_in(np.linspace(-12, 12, 50), shared, step=0.1)


def test_what_has_no_other_reason_has_few_bits() -> None:
    found = found_in([[3.0, -3.0]], step=0.025)

    assert found == {"few bits": "8 bits: a typical value of 3 is 120.0 times the scale, 0.025"}


def test_of_a_tensor_without_a_scale_or_without_values_nothing_is_said() -> None:
    assert found_in([1.0, 2.0], step=None) == {}
    assert found_in([], step=0.1) == {}


# Weights


def made_of(plain: np.ndarray, step, *, bias: Constant | None = None, axis: int = 0, **more):
    """Return the causes of a weight rounded with a step, by name."""
    plain = np.asarray(plain, np.float32)
    codes = np.clip(np.rint(plain / step), -128, 127)
    constant = Constant(codes.astype(np.int8), (codes * step).astype(np.float32), plain)
    found = weight_causes(weight(step=step, **more), constant, bias, axis)
    return {cause.name: cause.detail for cause in found}


def test_channels_that_are_rounded_to_nothing_are_counted() -> None:
    plain = np.ones((5, 4)) * np.array([1, 1e-3, 1, 2e-3, 0]).reshape(5, 1)

    # A channel of zeros loses nothing.
    assert made_of(plain, 0.01)["dead channel"] == (
        "2 of 5 output channels are rounded to nothing (first 1)"
    )


def test_channels_are_those_of_the_channel_axis() -> None:
    plain = np.ones((4, 6))
    plain[:, 2] = 5

    assert made_of(plain, 0.05, axis=1)["outlier channel"] == (
        "channel 2 reaches 5, the median channel 1"
    )
    assert "outlier channel" not in made_of(plain, 0.05, axis=0)


def test_channels_with_a_scale_each_are_no_outliers() -> None:
    plain = np.ones((6, 4))
    plain[3] = 9
    steps = scale(np.full((6,), 0.1), axis=0)

    assert "outlier channel" in made_of(plain, 0.1)
    assert "outlier channel" not in made_of(plain, 0.1, scale=steps)


def test_a_clipped_weight_is_named() -> None:
    plain = np.ones((3, 10))
    plain[0, 0] = 2

    assert made_of(plain, 1 / 127)["clipped range"] == (
        "3.33% of the values lie beyond -1.01..1; they reach 1..2"
    )


def test_a_power_of_two_of_a_weight_is_named() -> None:
    found = made_of(np.full((3, 3), 0.6), 2.0**-7)

    assert found == {"power-of-two rounding": "the power of two leaves 40% of the integers unused"}


def test_biases_at_the_limit_are_counted() -> None:
    limit = np.iinfo(np.int32).max
    codes = np.array([5, limit, -limit, 7], np.int32)
    bias = Constant(codes, codes.astype(np.float32), None)

    assert made_of(np.ones((3, 3)), 1 / 127, bias=bias)["bias saturation"] == (
        "2 of 4 biases are at the limit of int32"
    )


def test_a_weight_that_was_rescaled_tells_of_its_bias_only() -> None:
    codes = np.array([np.iinfo(np.int32).max], np.int32)
    bias = Constant(codes, codes.astype(np.float32), None)
    unknown = Constant(np.ones((2, 2), np.int8), np.ones((2, 2), np.float32), None)

    assert [c.name for c in weight_causes(weight(), unknown, bias, 0)] == ["bias saturation"]
    assert weight_causes(weight(), unknown, None, 0) == ()


def test_a_weight_without_another_reason_has_few_bits() -> None:
    plain = np.random.default_rng(0).uniform(-1, 1, (4, 9))

    assert list(made_of(plain, 1.001 / 127)) == ["few bits"]


def test_of_many_scales_a_typical_one_tells_how_few_the_bits_are() -> None:
    plain = np.full((4, 9), 0.5)
    steps = scale(np.array([0.1, 0.1, 0.1, 50.0]), axis=0)

    assert made_of(plain, 0.1, scale=steps)["few bits"] == (
        "8 bits: a typical value of 0.5 is 5.0 times a typical scale, 0.1"
    )


@pytest.mark.parametrize(
    ("steps", "expected"), [([0.5, 0.25], True), ([0.5, 0.3], False), ([2.0**-20], True)]
)
def test_powers_of_two(steps, expected) -> None:
    assert causes.is_power_of_two(scale(np.array(steps))) is expected


# Nodes that share a scale


_JOINED = """<ir_version: 8, opset_import: ["": 17]>
g (float[2] a_dq, float[2] b_dq, float[2] c_dq) => (float[4] y, float[2] z, float[2] n) {
  y = Concat<axis=0>(a_dq, b_dq)
  z = Add(b_dq, c_dq)
  n = Relu(c_dq)
}"""


def test_tensors_of_one_scale_around_a_node_are_found() -> None:
    model = io.load(onnx.parser.parse_model(_JOINED))
    for node in model.graph:
        node.name = f"{node.outputs[0].name}_node"
    quantizers = [
        activation("a", 0.1),
        activation("b", 0.1),
        activation("c", 0.3),
        activation("y", 0.1),
        activation("z", 0.7),
        activation("n", 0.3),
    ]

    found = find_shared_scales(model, quantizers)

    expected = SharedScale("y_node", "Concat", ("a", "b", "y"))
    # c has its Relu's scale, but of one input and its output neither gives the other its scale.
    assert found == {"a": expected, "b": expected, "y": expected}


def test_a_single_number_and_an_empty_constant_are_weights_too() -> None:
    assert list(made_of(np.float32(0.3), 0.1)) == ["few bits"]
    assert made_of(np.zeros((0, 3)), 0.1) == {}
