from __future__ import annotations

import fractions
import math

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.transforms.rewrites import adapt

# What the datapath computes, worked out here without lowbit: an average of N numbers is their
# sum times k / 2**n with n < 7 + ceil(log2 N), and these kernels have constants of their own.
OWN = {3: (63, 64), 5: (250, 256), 6: (252, 256), 7: (1029, 1024), 14: (4116, 4096)}


def device_ratio(count: int) -> float:
    """Return the nearest k / 2**n to 1 / count, times count, in exact arithmetic."""
    bits = (count - 1).bit_length()
    candidates = [
        fractions.Fraction(round(fractions.Fraction(2**n, count)), 2**n) for n in range(7 + bits)
    ]
    wanted = fractions.Fraction(1, count)
    return float(min(candidates, key=lambda c: abs(c - wanted)) * count)


def pool_ratio(size: int) -> float:
    return OWN[size][0] / OWN[size][1] if size in OWN else device_ratio(size * size)


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.1, 0.1015625), (0.01, 3 / 256), (0.25, 0.25), (0.2, 51 / 256)]
)
def test_the_slope_of_a_leaky_relu_is_a_multiple_of_a_256th(
    normal, floats, run, assert_sound, alpha: float, expected: float
) -> None:
    before = normal(f"g (float[64] x) => (float[64] y) {{ y = LeakyRelu<alpha={alpha}>(x) }}")
    x = floats(64)

    after = adapt(before, ["leaky_relu_slope"])

    assert_sound(before, after)
    np.testing.assert_allclose(run(after, {"x": x})["y"], np.where(x < 0, x * expected, x), 1e-6)


def test_a_leaky_relu_has_the_standard_slope_if_none_is_given(normal) -> None:
    before = normal("g (float[64] x) => (float[64] y) { y = LeakyRelu(x) }")

    after = adapt(before, ["leaky_relu_slope"])

    assert after.graph[0].attributes.get_float("alpha", 0.0) == 3 / 256


def test_sigmoid_becomes_the_devices_gate(normal, floats, run, assert_sound) -> None:
    before = normal("g (float[64] x) => (float[64] y) { [gate] h = Sigmoid(x) y = Mul(x, h) }")
    x = 3 * floats(64)

    after = adapt(before, ["sigmoid_to_hardsigmoid", "hardsigmoid_factor"])

    assert_sound(before, after)
    assert ops(after) == ["HardSigmoid", "Mul", "Mul"]
    assert after.graph[0].name == "gate"
    expected = x * (x / 6 + 0.5).clip(0, 1) * (2731 / 16384 * 6)
    np.testing.assert_allclose(run(after, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


def test_the_factor_of_the_gate_is_the_devices(normal) -> None:
    before = normal(
        "g (float[4] x) => (float[4] y) { y = HardSigmoid<alpha=0.16666667, beta=0.5>(x) }"
    )

    after = adapt(before, ["hardsigmoid_factor"])

    assert after.graph[1].inputs[1].const_value.numpy() == np.float32(1.0001220703125)


def test_another_gate_has_no_counterpart(normal) -> None:
    before = normal("g (float[4] x) => (float[4] y) { y = HardSigmoid<alpha=0.2>(x) }")

    assert ops(adapt(before, ["hardsigmoid_factor"])) == ["HardSigmoid"]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20])
@pytest.mark.parametrize("kind", ["AveragePool", "GlobalAveragePool"])
def test_averages_of_squares_are_the_devices(
    normal, floats, run, assert_sound, kind: str, size: int
) -> None:
    kernel = f"<kernel_shape=[{size},{size}]>" if kind == "AveragePool" else ""
    before = normal(
        f"g (float[1,2,{size},{size}] x) => (float[1,2,1,1] y) {{ y = {kind}{kernel}(x) }}"
    )
    x = floats(1, 2, size, size) + 1

    after = adapt(before, ["average_pool_factor"])

    assert_sound(before, after)
    expected = x.mean((2, 3), keepdims=True) * pool_ratio(size)
    np.testing.assert_allclose(run(after, {"x": x})["y"], expected, rtol=1e-5)
    assert (len(ops(after)) == 1) is (pool_ratio(size) == 1)


@pytest.mark.parametrize(
    ("height", "width"), [(3, 5), (7, 8), (256, 256)], ids=["oblong", "oblong too", "too large"]
)
def test_other_averages_are_left_alone(normal, height: int, width: int) -> None:
    before = normal(
        f"g (float[1,2,{height},{width}] x) => (float[1,2,1,1] y) {{ y = GlobalAveragePool(x) }}"
    )

    assert ops(adapt(before, ["average_pool_factor"])) == ["GlobalAveragePool"]


def test_an_average_of_unknown_size_is_left_alone(normal) -> None:
    before = normal("g (float[1,2,h,w] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }")

    assert ops(adapt(before, ["average_pool_factor"])) == ["GlobalAveragePool"]


def test_the_largest_kernel_with_a_factor_has_255_rows(normal) -> None:
    before = normal("g (float[1,1,255,255] x) => (float[1,1,1,1] y) { y = GlobalAveragePool(x) }")

    factor = adapt(before, ["average_pool_factor"]).graph[1].inputs[1].const_value.numpy()

    assert factor == np.float32(device_ratio(255 * 255))


@pytest.mark.parametrize(
    ("opset", "mean", "count"),
    [
        (13, "ReduceMean<axes=[1]>(x)", 3),
        (13, "ReduceMean<axes=[-1]>(x)", 7),
        (13, "ReduceMean<axes=[2,3]>(x)", 35),
        (18, "ReduceMean(x, axes)", 21),
    ],
)
def test_means_are_the_devices(
    normal, floats, run, assert_sound, opset: int, mean: str, count: int
) -> None:
    before = normal(
        f"g (float[2,3,5,7] x) => (float[a,b,c,d] y) {{ y = {mean} }}",
        {"axes": np.int64([1, 3])},
        opset=opset,
    )
    x = floats(2, 3, 5, 7) + 1

    after = adapt(before, ["reduce_mean_factor"])

    assert_sound(before, after)
    expected = run(before, {"x": x})["y"] * np.float32(device_ratio(count))
    np.testing.assert_allclose(run(after, {"x": x})["y"], expected, rtol=1e-5)


def test_a_mean_over_a_power_of_two_is_exact(normal) -> None:
    before = normal("g (float[2,16] x) => (float[2,1] y) { y = ReduceMean<axes=[1]>(x) }")

    assert ops(adapt(before, ["reduce_mean_factor"])) == ["ReduceMean"]


def test_a_mean_over_an_open_axis_is_left_alone(normal) -> None:
    before = normal("g (float[2,n] x) => (float[2,1] y) { y = ReduceMean<axes=[1]>(x) }")

    assert ops(adapt(before, ["reduce_mean_factor"])) == ["ReduceMean"]


@pytest.mark.parametrize(("low", "expected"), [(0.0, "Relu"), (1.0, "Relu"), (-1.0, "Clip")])
def test_clip_from_zero_becomes_relu(
    normal, floats, run, assert_sound, low: float, expected: str
) -> None:
    before = normal(
        "g (float[64] x) => (float[64] y) { [act] y = Clip(x, low, high) }",
        {"low": np.array(low, np.float32), "high": np.array(6, np.float32)},
    )
    x = floats(64)

    after = adapt(before, ["clip_to_relu"])

    assert_sound(before, after)
    assert ops(after) == [expected]
    assert after.graph[0].name == "act"
    if low == 0:
        np.testing.assert_array_equal(run(after, {"x": x})["y"], np.maximum(x, 0))


def test_a_clip_whose_bound_varies_stays(normal) -> None:
    before = normal("g (float[64] x, float low) => (float[64] y) { y = Clip(x, low) }")

    assert ops(adapt(before, ["clip_to_relu"])) == ["Clip"]


def test_a_factor_reaches_every_reader_and_the_output(normal, floats, run, assert_sound) -> None:
    before = normal(
        """g (float[1,2,3,3] x) => (float[1,2,1,1] p, float[1,2,1,1] y) {
          p = GlobalAveragePool(x)
          n = Neg(p)
          y = Mul(n, p)
        }"""
    )
    x = floats(1, 2, 3, 3) + 1

    after = adapt(before, ["average_pool_factor"])

    assert_sound(before, after)
    pooled = x.mean((2, 3), keepdims=True) * 63 / 64
    outputs = run(after, {"x": x})
    np.testing.assert_allclose(outputs["p"], pooled, rtol=1e-5)
    np.testing.assert_allclose(outputs["y"], -(pooled**2), rtol=1e-5)


@pytest.mark.parametrize("count", [3, 10, 49, 196, 1000])
def test_the_devices_ratio_is_near_one(count: int) -> None:
    assert math.isclose(device_ratio(count), 1, abs_tol=1 / 64)
